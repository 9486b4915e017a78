"""The process behind `fork_server`: imports the workers' modules, forks workers on request, waits for their end.

A socket carries its requests: fork a worker, or wait for the end of one. It ends with its parent, and its workers with
it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mlflow_ngraph.processes import parent_death

REQUEST_BYTES = 1 << 18
PIPES = 3
"""Standard input, output and error of a worker."""


def main() -> None:
    """Import the modules, and fork workers on request until the parent is gone.

    The command line names the socket, the folder for temporary files, which goes at the end, and the modules.
    """
    number, folder, *modules = sys.argv[1:]
    # During imports it does not notice that the socket is closed.
    parent_death.send_to_self(signal.SIGKILL)
    with socket.socket(fileno=int(number)) as control:
        for name in modules:
            # A worker that needs it fails the same way, and reports it.
            with contextlib.suppress(Exception):
                import_module(name)
        # Live objects stay for good: the collectors of workers need not touch, and thereby copy, their pages.
        gc.collect()
        gc.freeze()
        # From here on it does, and tidies up.
        parent_death.send_to_self(None)
        born = _serve(control)
    if born is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _settle_in(born)
        import_module(born["module"]).main()


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Answer requests. Returns None when the parent is gone, and the request in each forked process."""
    alive: set[int] = set()
    while True:
        text, pipes, _, _ = socket.recv_fds(control, REQUEST_BYTES, PIPES, socket.MSG_CMSG_CLOEXEC)
        if not text:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return None
        request: dict[str, Any] = json.loads(text)
        if "wait" in request:
            alive.discard(request["wait"])
            answer = _end_of(request["wait"])
        else:
            pid = os.fork()
            # Parent and worker both create the group: it exists for whichever comes first.
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)
            if pid == 0:
                for number, pipe in enumerate(pipes):
                    os.dup2(pipe, number)
            for pipe in pipes:
                os.close(pipe)
            if pid == 0:
                return request
            alive.add(pid)
            answer = {"pid": pid}
        control.sendall(json.dumps(answer).encode())


def _end_of(pid: int) -> dict[str, float]:
    """Wait for a worker; return the exit code as `subprocess` does, and its CPU seconds."""
    _, status, used = os.wait4(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "cpu_s": used.ru_utime + used.ru_stime}


def _settle_in(born: Mapping[str, Any]) -> None:
    """Set up the state of a worker that had started by itself."""
    places = _extra_places()
    for name, value in born["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # an import of the server's may have settled where temporary files go
    os.chdir(born["directory"])
    first = next((number for number, place in enumerate(sys.path) if [place] == places[:1]), 0)
    sys.path[first : first + len(places)] = _extra_places()
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(threads))


def _extra_places() -> list[str]:
    """Directories of ``PYTHONPATH`` as the interpreter adds them to its path."""
    return [str(Path(place).absolute()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
