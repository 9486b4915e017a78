"""Handle of a serving process: start it, test it, connect and disconnect clients, end it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import EngineError, NGraphError
from mlflow_ngraph.processes.interruption import signal_name
from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph_serve import process
from mlflow_ngraph_serve.client import infer
from mlflow_ngraph_serve.following import engine_process
from mlflow_ngraph_serve.following.channel import Channel
from mlflow_ngraph_serve.listening import address, listen
from mlflow_ngraph_serve.server import GRACE_S

if TYPE_CHECKING:
    from mlflow_ngraph_serve.following.follower_state import KeptEngine
    from mlflow_ngraph_serve.settings import Settings

START_S = 600.0
"""Timeout for loading and warming up an engine; some runtimes compile when they load."""
_ANSWER_S = 5.0
"""Timeout of a health check."""
_POLL_S = 0.02
_GRAVE = {f'ngraph_failures_total{{reason="{reason}"}}': reason for reason in ("engine", "internal")}
"""Counters of failed requests that are no client's fault."""


@dataclass(frozen=True)
class Public:
    """The address that clients use, whichever engine serves."""

    name: str
    """Name of the model, without a version."""
    settings: Settings
    listening: socket.socket

    @property
    def url(self) -> str:
        return f"{address(self.listening)}/v2/models/{self.name}/infer"


class EngineServer:
    """The process. It is to be started by the main thread, with whose end the system ends it.

    Attributes
    ----------
    ready: whether the engine is loaded and warm.
    open: whether the process takes connections of clients.
    failed: why it will never serve; empty while that is not known.
    opened_at: since when it is open, by the monotonic clock.

    Raises
    ------
    EngineError
        The package is damaged.
    """

    def __init__(self, engine: KeptEngine, public: Public) -> None:
        self.engine = engine
        self.ready = self.open = False
        self.failed = ""
        self.started_at = time.monotonic()
        self.opened_at = 0.0
        self._public = public
        self._package = read_manifest(Path(engine.directory), engine.digest)
        order, env = process.ordered(self._package, public.name, public.settings)
        self._scratch = order.scratch
        own = listen("127.0.0.1", 0)
        self._url = address(own)
        self.channel, other = Channel.pair()
        inherited = engine_process.Inherited(own.fileno(), public.listening.fileno(), other.fileno(), os.getpid())
        with own, other:
            self._process = subprocess.Popen(
                command(engine_process.__name__, order.to_json(), inherited.to_json()),
                env=env,
                pass_fds=(inherited.own, inherited.public, inherited.channel),
                stdin=subprocess.DEVNULL,
                # What a terminal sends to a group is for the follower, who ends this process in its own time.
                start_new_session=True,
            )

    def hear(self) -> None:
        """Read messages of the process, and notice its end."""
        for message in self.channel.receive():
            self.ready = self.ready or "ready" in message
            self.failed = message.get("failed", self.failed)
            if message.get("open") and not self.open:
                self.opened_at = time.monotonic()
            self.open = message.get("open", self.open)
        if self.channel.ended and not self.failed:
            self.failed = self._end()
        late = not self.ready and time.monotonic() > self.started_at + START_S
        if late and not self.failed:
            self.failed = f"it did not get ready in {START_S:.0f} s"

    def let_in(self) -> None:
        """Accept clients."""
        self.channel.send(do="open")

    def stand_aside(self) -> None:
        """Accept no more clients, and stay."""
        self.channel.send(do="aside")

    def difference(self, timeout_s: float | None = None) -> str:
        """Compare its outputs with the model's for the same inputs; empty where they agree.

        Parameters
        ----------
        timeout_s : float | None
            Timeout of the request; by default that of the server's requests.

        Raises
        ------
        EngineError
            There is no answer, or none that could be compared.
        """
        manifest = self._package.manifest
        known = read_probe(self._package.engine)
        named = {tensor.name: array for tensor, array in zip(manifest.spec.inputs, known.inputs, strict=True)}
        try:
            answer = infer(self._url, self._public.name, named, timeout_s or self._public.settings.timeout_s)
            outputs = [answer[tensor.name] for tensor in manifest.spec.outputs]
        except (NGraphError, ValueError, LookupError) as error:
            raise EngineError(f"it does not answer as it should: {error}") from None
        problem = known.problem(outputs, manifest.precision)
        return f"its outputs are not those of the model: {problem}" if problem else ""

    def trouble(self) -> str | None:
        """Problem of a serving process; empty without one, None where it does not answer."""
        import requests

        try:
            ready = requests.get(f"{self._url}/v2/health/ready", timeout=_ANSWER_S)
            page = requests.get(f"{self._url}/metrics", timeout=_ANSWER_S).text
        except requests.RequestException:
            return None
        if not ready.ok:
            return "it is not ready any more"
        for line in page.splitlines():
            name, _, number = line.rpartition(" ")
            if name in _GRAVE and float(number):
                return f"requests failed that are no client's fault: {_GRAVE[name]}"
        return ""

    def end(self) -> None:
        """Have it answer its requests, and end; `gone` says when."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def gone(self, deadline: float) -> bool:
        """Test if it has ended; kill it after ``deadline`` by the monotonic clock."""
        if self._process.poll() is None and time.monotonic() > deadline:
            self.kill()
        if self._process.poll() is None:
            return False
        self._tidy()
        return True

    def kill(self) -> None:
        """Kill it with everything that it has started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                # With whatever it has started.
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._tidy()

    @property
    def patience_s(self) -> float:
        """Limit for a graceful end."""
        return self._public.settings.timeout_s + 2 * GRACE_S

    def _end(self) -> str:
        """Reason for the end of the process, once its channel is closed."""
        try:
            code = self._process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it did not answer"
        return f"it was killed by {signal_name(-code)}" if code < 0 else f"it ended with code {code}"

    def _tidy(self) -> None:
        self.channel.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def end_all(servers: Sequence[EngineServer]) -> bool:
    """Have processes answer their requests, and end; returns True if each did so by itself."""
    for server in servers:
        server.end()
    try:
        until = time.monotonic() + max((server.patience_s for server in servers), default=0.0)
        left = [server for server in servers if not server.gone(math.inf)]
        while left and time.monotonic() < until:
            time.sleep(_POLL_S)
            left = [server for server in left if not server.gone(math.inf)]
        return not left
    finally:
        for server in servers:
            server.kill()
