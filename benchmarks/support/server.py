"""A tracking server of one's own, as a team would run one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_START_S = 120.0


@contextmanager
def tracking_server(home: Path, workers: int | None = None, app_name: str | None = None) -> Iterator[str]:
    """The address of an ``mlflow server`` on the SQLite file ``mlflow.db`` in ``home``, which serves ``artifacts`` there.

    Parameters
    ----------
    workers: processes that answer; MLflow's own default when left out.
    app_name: the application that it serves, such as ``ngraph`` with the page; MLflow's own when left out.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address, log = f"http://127.0.0.1:{port}", home / "server.log"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}", "--artifacts-destination", str(home / "artifacts")),
    ]
    if workers is not None:
        command += ["--workers", str(workers)]
    if app_name is not None:
        command += ["--app-name", app_name]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **QUIET}, cwd=home, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the tracking server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


@contextmanager
def own_server(home: Path, store: str | None = None) -> Iterator[str]:
    """The address of a server as ``mlflow-ngraph server`` runs one for a lab, with its folder in ``home``.

    Parameters
    ----------
    store: a database that is there; by default one of its own.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "server.log"
    command = [sys.executable, "-m", "mlflow_ngraph", "server", "--folder", str(home / "lab"), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *(["--store", store] if store else [])],
            stdout=output,
            stderr=output,
            env={**os.environ, **QUIET},
        )
    try:
        deadline = time.monotonic() + _START_S
        while b"the server answers at" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the tracking server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2):  # noqa: S310 - our own server
            return True
    except (urllib.error.URLError, OSError):
        return False
