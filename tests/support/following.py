"""``mlflow-ngraph fleet follow`` as a process, and a client that asks what it serves all the while."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import requests

from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph_serve.client import decode, encode
from mlflow_ngraph_serve.protocol import LENGTH_HEADER

PATIENCE_S = 120.0
"""For whatever is waited for; a busy machine takes its time."""
DEVICE = "bench"


@dataclass
class Following:
    """The process, and what it says."""

    process: subprocess.Popen[str]
    lines: list[tuple[float, str]] = field(default_factory=list)
    """With when each came, by the monotonic clock."""

    def said(self, text: str, after: int = 0) -> float:
        """Wait for a line with this text, and return when it came.

        Parameters
        ----------
        after: of the lines that have come, those that do not count.
        """
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for at, line in self.lines[after:]:
                if text in line:
                    return at
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"it did not say {text!r}: {[line for _, line in self.lines]}")

    def said_nothing_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, during which no line comes."""
        lines, until = len(self.lines), time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, "it did not happen"
            time.sleep(0.02)
        assert len(self.lines) == lines, self.text

    @property
    def text(self) -> str:
        """All that it has said."""
        return "\n".join(line for _, line in self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))


@contextmanager
def following(source: str, uri: str, log: Path, *options: str) -> Iterator[Following]:
    """A follower, ended in the end if it has not by then."""
    command = [sys.executable, "-m", "mlflow_ngraph", "fleet", "follow", source, "--device", DEVICE, *options]
    with log.open("a") as errors, _interruptible():
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONUNBUFFERED": "1"},
        )
    found = Following(process)
    reader = threading.Thread(target=found._read, daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            reader.join(10)


@contextmanager
def _interruptible() -> Iterator[None]:
    """What is started takes SIGINT, also where these tests run in the background of a shell, which ignores it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Client:
    """Asks for the same inference again and again, and keeps what came of it.

    Parameters
    ----------
    url: where.
    package: an engine of the model that is served.
    keeps: whether it keeps its connection as long as it may; else each request has a new one.
    """

    url: str
    package: Path
    keeps: bool = False
    answered: list[tuple[float, float, str]] = field(default_factory=list)
    """When a request was sent and answered, by the monotonic clock, and by which version of the model."""
    lost: list[tuple[float, float, str]] = field(default_factory=list)
    """When a request was sent and failed, and how."""
    wrong: int = 0
    """Answers that were not those of the model."""

    def longest_gap_s(self, since: float = 0.0, until: float = float("inf")) -> float:
        """The longest time from one answer to the next."""
        times = [answer for _, answer, _ in self.answered if since <= answer <= until]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def versions(self) -> list[str]:
        """Those that have answered, in order, each once for as long as it did."""
        seen: list[str] = []
        for _, _, version in self.answered:
            if seen[-1:] != [version]:
                seen.append(version)
        return seen

    @contextmanager
    def asking(self, pause_s: float = 0.01) -> Iterator[Client]:
        """Ask, until the block ends."""
        stop = threading.Event()
        thread = threading.Thread(target=self._ask, args=(stop, pause_s))
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _ask(self, stop: threading.Event, pause_s: float) -> None:
        probe = read_probe(self.package / "engine")
        inputs, reference = probe.inputs, probe.outputs
        known = read_manifest(self.package).manifest.spec.inputs
        body, headers = encode({tensor.name: array for tensor, array in zip(known, inputs, strict=True)})
        session = requests.Session()
        while not stop.wait(pause_s):
            sent = time.monotonic()
            try:
                answer = (session if self.keeps else requests).post(self.url, data=body, headers=headers, timeout=60)
            except requests.RequestException as error:
                self.lost.append((sent, time.monotonic(), type(error).__name__))
                continue
            if answer.status_code != 200:
                self.lost.append((sent, time.monotonic(), str(answer.status_code)))
                continue
            self.answered.append((sent, time.monotonic(), _version(answer)))
            outputs: dict[str, Any] = decode(answer.content, answer.headers[LENGTH_HEADER])
            if not np.allclose(next(iter(outputs.values())), reference[0], atol=1e-4):
                self.wrong += 1


def _version(answer: requests.Response) -> str:
    return str(json.loads(answer.content[: int(answer.headers[LENGTH_HEADER])])["model_version"])
