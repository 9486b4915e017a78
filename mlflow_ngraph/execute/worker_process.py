"""How workers begin, by themselves or forked, and what ends them when whoever started them is gone."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
        self._groups: dict[int, Path] = {}
        self._halted: Sequence[int] = ()
        self._start()

    def add(self, group: int, temporary: Path) -> None:
        """List a process group, and the folder of its temporary files."""
        self._groups[group] = temporary
        self._write(_listed(group, temporary))

    def remove(self, group: int) -> None:
        """Forget a process group, which has ended."""
        self._groups.pop(group, None)
        self._write(f"-{group}\n")

    def let_go_on(self, halted: Sequence[int]) -> None:
        """Name the processes that may be stopped, in place of those named before: at the end they are let go on."""
        self._halted = tuple(halted)
        self._write(self._said())

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
            self._pipe.write("".join([*(_listed(*entry) for entry in self._groups.items()), self._said()]).encode())

    def _said(self) -> str:
        return f"~{' '.join(map(str, self._halted))}\n"


def _listed(group: int, temporary: Path) -> str:
    return f"+{group} {json.dumps(str(temporary))}\n"


Pipes = tuple[int, int, int]
"""File descriptors of standard input, output and error."""


class Spawned:
    """A worker with an interpreter that it started itself."""

    def __init__(self, env: Mapping[str, str], pipes: Pipes) -> None:
        stdin, stdout, stderr = pipes
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


def start(warden: Warden, env: Mapping[str, str], temporary: Path, pipes: Pipes, *, forked: bool) -> Spawned | Forked:
    """Start a worker in a process group of its own.

    Parameters
    ----------
    warden : Warden
        Ends it if we are killed, and removes what it has left in ``temporary``.
    temporary : Path
        Where it is to put temporary files.
    pipes : Pipes
        They stay the caller's to close.
    forked : bool
        Fork it where there is something to fork it from.
    """
    env = {**env, "TMPDIR": str(temporary)}
    server = fork_server.serving(env) if forked else None
    if server is not None:
        with contextlib.suppress(ConnectionError):  # it has crashed; what starts by itself says why
            worker = server.fork(env, *pipes)
            warden.add(worker.pid, temporary)
            return worker
    # Nobody would end a process that has started and is on no list; a forked one ends with its server.
    with interruption.whole():
        process = Spawned(env, pipes)
        warden.add(process.pid, temporary)
    return process
