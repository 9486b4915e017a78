"""Start a child process: an interpreter or a fork that runs a module's `main` in its own process group."""

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
    """A child with its own interpreter."""

    def __init__(self, module: str, env: Mapping[str, str], pipes: Pipes) -> None:
        stdin, stdout, stderr = pipes
        self._process = subprocess.Popen(
            command(module), stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env), start_new_session=True
        )
        self.pid = self._process.pid

    def wait(self) -> tuple[int, float | None]:
        """See `Forked.wait`."""
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, used.ru_utime + used.ru_stime


def start(
    module: str, env: Mapping[str, str], temporary: Path, pipes: Pipes, *, warden: Warden | None, forked: bool
) -> Spawned | Forked:
    """Start a child that runs the `main` of a module; the caller closes the pipes.

    A warden ends it if the parent is killed, and deletes ``temporary``, the folder of its temporary files; without one
    only the kernel ends it. ``forked``: fork it if there is a fork server.
    """
    env = {**environment.of_scratch(temporary), **env, "TMPDIR": str(temporary)}
    server = fork_server.serving(env) if forked else None
    if server is not None:
        with contextlib.suppress(ConnectionError):  # it has crashed; what starts by itself says why
            worker = server.fork(module, env, *pipes)
            if warden is not None:
                warden.add(worker.pid, temporary)
            return worker
    # A process that has started but is not listed would never be ended; a forked one ends with its server.
    with interruption.deferred():
        process = Spawned(module, env, pipes)
        if warden is not None:
            warden.add(process.pid, temporary)
    return process
