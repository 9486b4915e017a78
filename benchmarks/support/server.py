"""A tracking server of one's own, as a team would run one."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_START_S = 120.0


class Server:
    """``mlflow server`` on the SQLite file ``mlflow.db`` in a folder, which serves ``artifacts`` there.

    It can be killed and started again at the same address.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Until it answers."""
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts"), *self._options),
        ]
        log = self._folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, **QUIET},
                cwd=self._folder,
                start_new_session=True,
            )
        wait_for(self.address, log, process=self._process)

    def end(self, number: signal.Signals) -> None:
        """Send all its processes a signal, and wait for their end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.wait(30)


@contextmanager
def tracking_server(home: Path, workers: int | None = None, app_name: str | None = None) -> Iterator[str]:
    """The address of a server of MLflow's own with its files in ``home``.

    Parameters
    ----------
    workers: processes that answer; MLflow's own default when left out.
    app_name: the application that it serves, such as ``ngraph`` with the page; MLflow's own when left out.
    """
    options = []
    if workers is not None:
        options += ["--workers", str(workers)]
    if app_name is not None:
        options += ["--app-name", app_name]
    server = Server(home, *options)
    try:
        server.start()
        yield server.address
    finally:
        server.end(signal.SIGTERM)


@contextmanager
def own_server(home: Path, store: str | None = None) -> Iterator[str]:
    """The address of a server as ``mlflow-ngraph server`` runs one for a lab, with its folder in ``home``.

    Parameters
    ----------
    store: a database that is there; by default one of its own.
    """
    port, log = free_port(), home / "server.log"
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


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    address: str, log: Path, chain: Path | None = None, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait until a server answers at an address, or its process, where that is given, has ended.

    Parameters
    ----------
    chain: the certificate of its authority, where it answers over TLS.
    """
    context = ssl.create_default_context(cafile=str(chain)) if chain else None
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2, context=context).close()  # noqa: S310 - our own server
        except (urllib.error.URLError, OSError) as error:
            if isinstance(error, urllib.error.HTTPError):
                return
            if time.monotonic() > deadline or (process is not None and process.poll() is not None):
                raise SystemExit(f"the tracking server did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.2)
        else:
            return
