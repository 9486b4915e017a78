"""MLflow's tracking server with this project's page: run it as a child process that ends with this one."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from mlflow_ngraph.addresses import shown
from mlflow_ngraph.errors import NGraphError, UsageError
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph_serve.hosting import access, database

ARTIFACTS = "artifacts"
"""Name in the server's folder."""
_PATIENCE_S = 120.0
"""Timeout for the first answer: MLflow's imports on a small machine, and the tables of a new database."""
_GRACE_S = 15.0
"""Time for the server to end by itself."""
_POLL_S = 0.2


@dataclass(frozen=True)
class ServerOptions:
    """Options of a tracking server."""

    folder: Path
    """Folder of everything that has no other place."""
    host: str = "127.0.0.1"
    port: int = 5000
    store: str | None = None
    """Address of a database; see `database.running`."""
    artifacts: str | None = None
    """Folder or address of a store for files; by default in ``folder``. Clients send them to the server."""
    names: tuple[str, ...] = ()
    """Names of the server besides those of the machine."""
    certificate: Path | None = None
    key: Path | None = None
    login: bool = True
    """Visitors have to log in, unless only this machine can reach it."""

    @property
    def has_users(self) -> bool:
        return self.login and not access.is_loopback(self.host)

    @property
    def address(self) -> str:
        """Address for clients: on this machine or, where it listens everywhere, elsewhere."""
        host = socket.getfqdn() if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"{'https' if self.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"


def run(options: ServerOptions, ready: Callable[[str], object]) -> int:
    """Run a server until it ends, or SIGTERM or SIGINT ends it.

    Parameters
    ----------
    ready : Callable[[str], object]
        Called once it answers, with the address of its database.

    Returns
    -------
    int
        0 where a signal ended it.

    Raises
    ------
    UsageError
        It cannot be like this: the port is taken, for example.
    NGraphError
        It does not come up.
    """
    try:
        options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder {options.folder}: {error.strerror}") from error
    _require_free(options.host, options.port)
    if options.artifacts and shown(options.artifacts) != options.artifacts:
        raise UsageError(
            f"artifacts {shown(options.artifacts)}: a login on the command line can be read by every user of this machine: put "
            "it into variables of the store instead, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    tls = access.certificate(options.certificate, options.key)
    users = access.users(options.folder) if options.has_users else {}
    with (
        contextlib.closing(Warden()) as warden,
        database.running(options.folder, options.store, warden) as store,
        _until_signal(_command(options, tls, store), options.folder, {**users, database.VARIABLE: store}, warden) as (
            process,
            asked,
        ),
    ):
        _wait(process, asked, options)
        if process.poll() is None and not asked:
            ready(store)
        code = process.wait()
    if asked:
        return 0
    raise NGraphError(f"the server ended by itself with code {code}: see what it said above")


def _command(options: ServerOptions, tls: list[str], store: str) -> list[str]:
    artifacts = options.artifacts or str(options.folder / ARTIFACTS)
    if not urlsplit(artifacts).scheme:
        artifacts = str(Path(artifacts).absolute())
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", options.host, "--port", str(options.port)),
        *("--app-name", "ngraph-auth" if options.has_users else "ngraph", "--artifacts-destination", artifacts),
        *("--allowed-hosts", access.hosts(options.host, options.names)),
    ]
    if database.is_for_one(store):
        command += ["--workers", "1"]
    if tls:
        command += ["--uvicorn-opts", shlex.join(tls)]
    return command


def _require_free(host: str, port: int) -> None:
    """Report a taken port before a database is made."""
    try:
        (family, kind, protocol, _, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose others with --host, --port"
        ) from error


@contextmanager
def _until_signal(
    command: list[str], folder: Path, environment: dict[str, str], warden: Warden
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start a process in a session of its own, which ends with all its children when a signal reaches this one.

    Yields
    ------
    tuple[subprocess.Popen[bytes], list[int]]
        The process, and the signals that came.
    """
    asked: list[int] = []
    # Its jobs are for evaluations of language models; each is a process.
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    variables = {**quiet, **os.environ, **environment}
    # Its processes import from the current directory, where the user may have a file of any module's name. What they write
    # is for the owner alone: hashes of passwords are among it.
    process = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, umask=0o077)
    warden.add(process.pid)

    def end(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        _signal(process, signal.SIGTERM)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield process, asked
    finally:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        # Its workers are in its session, whether it is there any more or not.
        _signal(process, signal.SIGKILL)
        process.wait()
        warden.remove(process.pid)
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _wait(process: subprocess.Popen[bytes], asked: list[int], options: ServerOptions) -> None:
    """Wait until the server answers, ends, or is asked to end."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(options.host, options.host)  # noqa: S104 - compared, not bound
    address = f"{'https' if options.certificate else 'http'}://{host}:{options.port}/health"
    deadline = time.monotonic() + _PATIENCE_S
    # It is this machine that answers, and the certificate has the name that others know it by.
    context = ssl._create_unverified_context() if options.certificate else None  # noqa: S323, SLF001
    while process.poll() is None and not asked:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(address, timeout=5, context=context),  # noqa: S310 - it is our own
        ):
            return
        if time.monotonic() > deadline:
            raise NGraphError(
                f"the server does not answer at {address} after {_PATIENCE_S:.0f} s: see what it said above"
            )
        time.sleep(_POLL_S)
