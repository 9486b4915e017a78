"""How workers begin, by themselves or forked, and what ends them when whoever started them is gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from mlflow_ngraph.execute import fork_server, interruption
from mlflow_ngraph.execute.fork_server import Forked


@dataclass
class Warden:
    """The process that ends our children if we are killed. See `mlflow_ngraph.execute.warden`.

    One that was killed itself has another in its place from the next child on.
    """

    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._groups: set[int] = set()
        self._start()

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._groups.discard(group)
        self._write(f"-{group}\n")

    def close(self) -> None:
        """Let it end; it kills whatever is still listed."""
        self._pipe.close()
        self.process.wait()

    @property
    def _pipe(self) -> IO[bytes]:
        if self.process.stdin is None:  # pragma: no cover - Popen was given PIPE
            raise RuntimeError("the warden has no pipe")
        return self.process.stdin

    def _start(self) -> None:
        script = Path(__file__).with_name("warden.py")
        # Unbuffered: what could not be written to one that is gone must not be left to be written when it is closed.
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
        )

    def _write(self, line: str) -> None:
        try:
            self._pipe.write(line.encode())
        except BrokenPipeError:
            self.close()
            self._start()
            self._pipe.write("".join(f"+{group}\n" for group in self._groups).encode())


class Spawned:
    """A worker with an interpreter that it started itself."""

    def __init__(self, env: Mapping[str, str], stdin: int, stdout: int, stderr: int) -> None:
        command = [sys.executable, "-m", "mlflow_ngraph.execute.worker"]
        self._process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), start_new_session=True
        )
        self.pid = self._process.pid

    def wait(self) -> tuple[int, float | None]:
        """As `Forked.wait`."""
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, used.ru_utime + used.ru_stime


def start(
    warden: Warden, env: Mapping[str, str], stdin: int, stdout: int, stderr: int, *, forked: bool
) -> Spawned | Forked:
    """Start a worker in a process group of its own.

    Parameters
    ----------
    warden : Warden
        Ends it if we are killed.
    stdin, stdout, stderr : int
        File descriptors, which stay the caller's to close.
    forked : bool
        Fork it where there is something to fork it from.
    """
    server = fork_server.serving(env) if forked else None
    if server is not None:
        with contextlib.suppress(ConnectionError):  # it has crashed; what starts by itself says why
            worker = server.fork(env, stdin, stdout, stderr)
            warden.add(worker.pid)
            return worker
    # Nobody would end a process that has started and is on no list; a forked one ends with its server.
    with interruption.whole():
        process = Spawned(env, stdin, stdout, stderr)
        warden.add(process.pid)
    return process
