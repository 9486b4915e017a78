"""Servers of engines for tests: within the test's process, and as the command line starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph_serve.listening import address, listen
from mlflow_ngraph_serve.server import Server
from mlflow_ngraph_serve.service import Service
from mlflow_ngraph_serve.settings import Settings

NAME = "block"


@dataclass(frozen=True)
class Running:
    """A server that can be asked."""

    url: str
    service: Service
    said: list[str]

    @property
    def infer(self) -> str:
        return f"{self.url}/v2/models/{NAME}/infer"

    def counter(self, name: str, **labels: str) -> float:
        """A number of the page of metrics."""
        return counted(self.url, name, **labels)


def counted(url: str, name: str, **labels: str) -> float:
    """A number of a page of metrics."""
    line = name + ("{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else "")
    for text in requests.get(f"{url}/metrics", timeout=10).text.splitlines():
        if text.startswith(f"{line} "):
            return float(text.rpartition(" ")[2])
    pytest.fail(f"there is no metric {line}")


@contextmanager
def serving(directory: Path, *, ready: bool = True, kind: type[Service] = Service, **options: Any) -> Iterator[Running]:
    """A server in a thread of this process."""
    settings = Settings.read({"port": 0, **options})
    said: list[str] = []
    service = kind(
        open_package(directory), NAME, settings.wishes, settings.limits, workers=settings.workers, tell=said.append
    )
    listening = listen(settings.host, 0)
    url = address(listening)
    server = Server(service, listening, said.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        if ready:
            until_ready(url)
        yield Running(url, service, said)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Process:
    """A server that the command line has started."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def infer(self) -> str:
        return f"{self.url}/v2/models/{NAME}/infer"

    @property
    def system(self) -> psutil.Process:
        """The process as the system sees it."""
        return psutil.Process(self.process.pid)


@contextmanager
def started(command: list[str], port: int, log: Path, env: dict[str, str] | None = None) -> Iterator[Process]:
    """A process that serves, from when it is ready."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stderr=output,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=log.parent,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until_ready(url, process, log)
        yield Process(url, process, log)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def until_ready(
    url: str, process: subprocess.Popen[str] | None = None, log: Path | None = None, seconds: float = 90
) -> None:
    """Wait for a server."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            break
        try:
            if requests.get(f"{url}/v2/health/ready", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.05)
    pytest.fail(f"the server did not get ready: {log.read_text()[-2000:] if log else ''}")
