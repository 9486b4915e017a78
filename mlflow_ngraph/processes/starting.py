"""Start a child process: it imports a module of the package and runs its `main`, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mlflow_ngraph.processes import environment, fork_server, interruption
from mlflow_ngraph.processes.fork_server import Forked
from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph.processes.warden import Warden

Pipes = tuple[int, int, int]
"""File descriptors of standard input, output and error."""


class Spawned:
    """A child with an interpreter that it started itself."""

    def __init__(self, module: str, env: Mapping[str, str], pipes: Pipes) -> None:
        stdin, stdout, stderr = pipes
        self._process = subprocess.Popen(
            command(module), stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), start_new_session=True
        )
        self.pid = self._process.pid

    def wait(self) -> tuple[int, float | None]:
        """As `Forked.wait`."""
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, used.ru_utime + used.ru_stime


def start(
    module: str, env: Mapping[str, str], temporary: Path, pipes: Pipes, *, warden: Warden | None, forked: bool
) -> Spawned | Forked:
    """Start a child.

    Parameters
    ----------
    module : str
        Its `main` is what the child does.
    temporary : Path
        Where it is to put temporary files.
    pipes : Pipes
        They stay the caller's to close.
    warden : Warden | None
        Ends it if we are killed, and removes what it has left in ``temporary``; without one the kernel alone ends it.
    forked : bool
        Fork it where there is something to fork it from.
    """
    env = {**environment.of_scratch(temporary), **env, "TMPDIR": str(temporary)}
    server = fork_server.serving(env) if forked else None
    if server is not None:
        with contextlib.suppress(ConnectionError):  # it has crashed; what starts by itself says why
            worker = server.fork(module, env, *pipes)
            if warden is not None:
                warden.add(worker.pid, temporary)
            return worker
    # Nobody would end a process that has started and is on no list; a forked one ends with its server.
    with interruption.whole():
        process = Spawned(module, env, pipes)
        if warden is not None:
            warden.add(process.pid, temporary)
    return process
