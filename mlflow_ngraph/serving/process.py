"""The process that serves an engine: ``python -m mlflow_ngraph.serving.process ORDER``.

An engine is served as it was measured: in a fresh process, with the environment variables that set its threads and without
what finding and checking it has imported. So whoever serves becomes this process when all checks are passed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mlflow_ngraph.errors import NGraphError

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph.serving.server import Server
    from mlflow_ngraph.serving.settings import Settings

_SCRATCH = "ngraph-serve-"


@dataclass(frozen=True)
class Order:
    """What to serve, and how."""

    directory: Path
    digest: str
    """Of the package's manifest, as it was checked."""
    name: str
    settings: Settings
    scratch: Path
    """Removed in the end."""

    def to_json(self) -> str:
        """For the command line of the process."""
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
        """The inverse of `to_json`."""
        from mlflow_ngraph.serving.settings import Settings

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
    os.execve(sys.executable, command, env)  # noqa: S606 - never with a shell


def command_of(package: Package, name: str, settings: Settings) -> tuple[list[str], dict[str, str]]:
    """The command of the process, and its environment."""
    from mlflow_ngraph.engines.environment import of_manifest

    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    order = Order(package.directory.absolute(), package.digest, name, settings, scratch)
    command = [sys.executable, "-m", "mlflow_ngraph.serving.process", order.to_json()]
    return command, of_manifest(package.manifest, scratch)


def main(arguments: list[str]) -> int:
    """Serve until a signal comes. SIGTERM and SIGINT end the server once it has answered what came in."""
    from mlflow_ngraph.engines import environment

    order = Order.parse(arguments[0])
    environment.enter()
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # While it runs, the web server has handlers of its own; when it has ended it hands the signal on.
        signal.signal(number, lambda number, _: ended.append(number))
    try:
        server = _server(order)
        done = bool(ended) or server.run()
    except NGraphError as error:
        _tell(f"error: {' '.join(str(error).split())}")
        return error.exit_code
    finally:
        shutil.rmtree(order.scratch, ignore_errors=True)
    if not done:
        _tell("error: the engine did not come to an end; requests were left without an answer")
        # Its thread cannot be ended, and Python would wait for it.
        os._exit(1)
    _tell("ended")
    return 0


def _server(order: Order) -> Server:
    from mlflow_ngraph.engines.package import open_package
    from mlflow_ngraph.serving.server import Server, listen
    from mlflow_ngraph.serving.service import Service

    settings = order.settings
    service = Service(
        open_package(order.directory, order.digest),
        order.name,
        settings.wishes,
        settings.limits,
        workers=settings.workers,
        tell=_tell,
    )
    return Server(service, listen(settings.host, settings.port), _tell)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - for whoever started the server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
