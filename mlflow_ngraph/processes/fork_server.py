"""ForkServer: handle of a process with PyTorch imported that forks untimed children, so that they start at once."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.python_command import command

_READ_BY_IMPORTS = ("PYTHON", "CUDA", "NVIDIA", *environment.STRAY_PREFIXES)
"""Prefixes of variables that change an import."""
_SETTLED_LATER = (*environment.THREAD_VARIABLES, "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that may differ in a forked process: it sets its threads and path itself, and reads the
rest late."""

PRELOADED = (
    *("torch", "torch._dynamo", "onnxscript"),
    *("mlflow_ngraph.workloads.preparing", "mlflow_ngraph.execute.worker"),
)
"""Modules that most workers import."""
_CHILD = "mlflow_ngraph.processes.fork_server_child"
_ENDED = "the process that children are forked from has ended"


class ForkServer:
    """Forks workers."""

    def __init__(self) -> None:
        # An import of PyTorch may create the folder of its compiler cache.
        self._scratch = tempfile.TemporaryDirectory(prefix="ngraph-")
        self._env = environment.of_threads(None, Path(self._scratch.name), patient=True)
        self._lock = threading.Lock()
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                command(_CHILD, str(its.fileno()), self._scratch.name, *PRELOADED),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._env,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """The server runs and answers."""
        return self._control.fileno() >= 0 and self._process.poll() is None

    def serves(self, env: Mapping[str, str]) -> bool:
        """Return True when a worker with this environment may be forked: no variable read by imports differs."""
        return not any(
            name.startswith(_READ_BY_IMPORTS) and name not in _SETTLED_LATER for name in self._differences(env)
        )

    def fork(self, module: str, env: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> Forked:
        """Fork a worker that runs the `main` of a module, in a process group and with an ``env`` that `serves` accepts.

        The caller closes the file descriptors. Raises `ConnectionError` if the server has ended.
        """
        request = {"module": module, "env": self._differences(env), "directory": str(Path.cwd())}
        return Forked(self, int(self._ask(request, stdin, stdout, stderr)["pid"]))

    def wait(self, pid: int) -> tuple[int, float | None]:
        try:
            answer = self._ask({"wait": pid})
        except ConnectionError:  # it has taken its workers with it
            return -9, None
        return int(answer["code"]), float(answer["cpu_s"])

    def close(self) -> None:
        """End the server and its workers."""
        self._control.close()
        self._process.wait()
        self._scratch.cleanup()

    def _differences(self, env: Mapping[str, str]) -> dict[str, str | None]:
        """Variables of a worker that differ from the server's; None for absent ones."""
        return {name: env.get(name) for name, _ in self._env.items() ^ env.items()}

    def _ask(self, request: Mapping[str, Any], *pipes: int) -> dict[str, Any]:
        with self._lock:
            if self._control.fileno() < 0:
                raise ConnectionError(_ENDED)
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(pipes))
                answer = self._control.recv(4096)
            except KeyboardInterrupt:
                # The next request would read this answer. The server takes its workers with it, including the new one.
                self._control.close()
                raise
        if not answer:
            raise ConnectionError(_ENDED)
        reply: dict[str, Any] = json.loads(answer)
        return reply


class Forked:
    """A forked worker."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def wait(self) -> tuple[int, float | None]:
        """Wait for its end; return the exit code as `subprocess` does, and the CPU seconds if known."""
        return self._server.wait(self.pid)


class _Shared:
    """The server of this process with the number of its users."""

    server: ForkServer | None = None
    users = 0


@contextmanager
def shared() -> Iterator[None]:
    """Provide a server within the block, started when first needed; the outermost block ends it."""
    _Shared.users += 1
    try:
        yield
    finally:
        _Shared.users -= 1
        if not _Shared.users and _Shared.server is not None:
            server, _Shared.server = _Shared.server, None
            server.close()


def serving(env: Mapping[str, str]) -> ForkServer | None:
    """The server for this environment; None outside `shared`, or when its environment differs."""
    if not _Shared.users:
        return None
    if _Shared.server is not None and not _Shared.server.alive:
        _Shared.server.close()
        _Shared.server = None
    _Shared.server = _Shared.server or ForkServer()
    return _Shared.server if _Shared.server.serves(env) else None
