"""The process behind `engine serve` and a deployment: its order as JSON, its start by exec, and its main function.

An engine is served as it was measured: in a fresh process, with the environment variables that set its threads and without
what finding and checking it has imported. So whoever serves becomes this process when all checks are passed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from filelock import FileLock, Timeout

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes import python_command
from mlflow_ngraph.processes.interruption import SIGNALS

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph_serve.server import Server
    from mlflow_ngraph_serve.service import Service
    from mlflow_ngraph_serve.settings import Settings

_SCRATCH, _LOCK = "ngraph-serve-", ".lock"
_STARTS_S = 600.0
"""Age from which on a folder that nobody has locked belongs to no server that is starting."""


@dataclass(frozen=True)
class Order:
    """The package to serve, and the options."""

    directory: Path
    digest: str
    """Digest of the package's manifest, as it was checked."""
    name: str
    settings: Settings
    scratch: Path
    """Removed in the end."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "directory": str(self.directory),
                "digest": self.digest,
                "name": self.name,
                "settings": self.settings.model_dump(),
                "scratch": str(self.scratch),
            }
        )

    @classmethod
    def parse(cls, text: str) -> Order:
        from mlflow_ngraph_serve.settings import Settings

        content = json.loads(text)
        return cls(
            Path(content["directory"]),
            content["digest"],
            content["name"],
            Settings.read(content["settings"]),
            Path(content["scratch"]),
        )


def become(package: Package, name: str, settings: Settings) -> NoReturn:
    """Make this process the server of a package that has been checked."""
    command, env = command_of(package, name, settings)
    sys.stdout.flush()
    sys.stderr.flush()
    # One that comes while the new process imports waits until somebody heeds it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execve(sys.executable, command, env)  # noqa: S606 - never with a shell


def command_of(package: Package, name: str, settings: Settings) -> tuple[list[str], dict[str, str]]:
    """The command of the process, and its environment."""
    order, env = ordered(package, name, settings)
    return python_command.command(__name__, order.to_json()), env


def ordered(package: Package, name: str, settings: Settings) -> tuple[Order, dict[str, str]]:
    """Order and environment of a process that serves a package."""
    from mlflow_ngraph.engines import compatibility
    from mlflow_ngraph.processes.environment import of_threads

    _sweep()
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    order = Order(package.directory.absolute(), package.digest, name, settings, scratch)
    spec = package.manifest.spec
    return order, of_threads(spec.target.threads, scratch, plain=not compatibility.compiler_of(spec).needs_module)


def _sweep() -> None:
    """Remove what servers of this user have left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError, Timeout):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours and time.time() - found.st_mtime > _STARTS_S:
                with FileLock(folder / _LOCK, timeout=0):
                    shutil.rmtree(folder)


def main() -> int:
    """Serve the order given as argument. SIGTERM and SIGINT end the server once it has answered its requests."""
    return serve(Order.parse(sys.argv[1]), _listening_server)


def serve(order: Order, server_of: Callable[[Order], Server]) -> int:
    """Serve until a signal comes, and return the exit code."""
    from mlflow_ngraph import process_memory, torchvision_hook

    process_memory.keep_freed()  # as studies do by default
    torchvision_hook.install()
    # Each connection is a descriptor, and systems allow 1,024 at first.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Nobody else may take the folder for one that was left.
    held = FileLock(order.scratch / _LOCK)
    held.acquire()
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # While it runs, the web server has handlers of its own; when it has ended it hands the signal on.
        signal.signal(number, lambda number, _: ended.append(number))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # A terminal that closes ends the server as any other end does.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        server = server_of(order)
        done = bool(ended) or server.run()
    except NGraphError as error:
        tell(f"error: {' '.join(str(error).split())}")
        return error.exit_code
    finally:
        shutil.rmtree(order.scratch, ignore_errors=True)
    if not done:
        tell("error: the engine did not come to an end; requests were left without an answer")
        # Its thread cannot be ended, and Python would wait for it.
        os._exit(1)
    tell("ended")
    return 0


def service_of(order: Order) -> Service:
    """The engine of an order, behind a queue; not loaded yet.

    Raises
    ------
    EngineError
        The package is damaged.
    UsageError
        It cannot be served like this.
    """
    from mlflow_ngraph.engines.package import open_package
    from mlflow_ngraph_serve.service import Service

    settings = order.settings
    return Service(
        open_package(order.directory, order.digest),
        order.name,
        settings.wishes,
        settings.limits,
        workers=settings.workers,
        tell=tell,
    )


def _listening_server(order: Order) -> Server:
    from mlflow_ngraph_serve.hosting.access import is_loopback
    from mlflow_ngraph_serve.listening import listen
    from mlflow_ngraph_serve.server import Server

    if not is_loopback(order.settings.host):
        tell("others can reach this server, which has neither authentication nor TLS: put a proxy in front of it")
    return Server(service_of(order), listen(order.settings.host, order.settings.port), tell)


def tell(line: str) -> None:
    """Print a line on standard error, if somebody reads it: a pipe into ``head`` ends before the server."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201
