"""A client for a tracking server whose failures are one line, and which gives up in time."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from mlflow_ngraph.errors import TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.entities import PagedList

T = TypeVar("T")

PREFLIGHT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "PGCONNECT_TIMEOUT": "4",
}
"""Bounds of the first contact: MLflow's own would block for minutes when nothing answers."""
RECORDING = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""What we ask of MLflow while we talk to it, unless the user said otherwise."""
_LONGEST_MESSAGE = 300


def resolve_uri(tracking_uri: str | None) -> str:
    """The tracking URI that MLflow uses when it is given ``tracking_uri``."""
    if tracking_uri:
        return tracking_uri
    import mlflow

    return str(mlflow.get_tracking_uri())


def connect(tracking_uri: str) -> MlflowClient:
    """A client of ``tracking_uri``. MLflow's own notes about making a new database are held back."""
    from mlflow import MlflowClient

    for name in ("mlflow.store.db.utils", "alembic.runtime.migration", "mlflow.tracking.fluent"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri)


def is_server(tracking_uri: str) -> bool:
    """Whether ``tracking_uri`` is a server rather than a store on this machine or a database."""
    return urlsplit(tracking_uri).scheme in ("http", "https")


def is_database(tracking_uri: str) -> bool:
    """Whether MLflow reads and writes ``tracking_uri`` as a database by itself."""
    return urlsplit(tracking_uri).scheme.partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")


def masked(text: str) -> str:
    """``text`` without the user names and passwords of the addresses in it."""
    return re.sub(r"(\w://)[^/\s@]*@", r"\1", text)


@contextmanager
def talking(tracking_uri: str, doing: str, settings: dict[str, str]) -> Iterator[None]:
    """Run a block that talks to a tracking server, with ``settings`` in the environment where they are not set.

    Raises
    ------
    TrackingError
        The server cannot be reached or refuses; one line that says what we were ``doing``.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        raise TrackingError(f"tracking server {masked(tracking_uri)}: cannot {doing}: {one_line(error)}") from error
    finally:
        for name in added:
            os.environ.pop(name, None)


def reach(tracking_uri: str, *, create: bool = False) -> MlflowClient:
    """A client of a server that answered just now.

    Parameters
    ----------
    create : bool
        Whether MLflow may make a database file that does not exist, which takes long and helps no reader.

    Raises
    ------
    TrackingError
        Nothing answers within about ten seconds, it refuses, or there is no such file.
    """
    missing = None if create else _missing_file(tracking_uri)
    if missing is not None:
        raise TrackingError(
            f"tracking server {tracking_uri}: nothing is recorded there yet: there is no file {missing}; give another "
            "tracking URI, or run 'mlflow-ngraph benchmark' or 'mlflow-ngraph sync' first"
        )
    with talking(tracking_uri, "reach it", PREFLIGHT):
        if is_database(tracking_uri):
            _probe_database(tracking_uri)
        client = connect(tracking_uri)
        client.search_experiments(max_results=1)
    return client


def _missing_file(tracking_uri: str) -> Path | None:
    """The file of an SQLite database that does not exist; None of everything else."""
    parts = urlsplit(tracking_uri)
    if parts.scheme.partition("+")[0] != "sqlite" or parts.netloc or len(parts.path) < 2 or ":memory:" in tracking_uri:
        return None
    path = Path(unquote(parts.path[1:])).absolute()
    return None if path.exists() else path


def every(fetch: Callable[[str | None], PagedList[T]]) -> list[T]:
    """All pages of a search; ``fetch`` gets the token of the page."""
    found: list[T] = []
    token = None
    while True:
        page = fetch(token)
        found += page
        token = page.token
        if not token:
            return found


def _probe_database(tracking_uri: str) -> None:
    """Open one connection: MLflow itself tries ten times, for minutes, before it says that there is no database."""
    from sqlalchemy import create_engine

    engine = create_engine(tracking_uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def server_version(tracking_uri: str) -> str | None:
    """The version of MLflow that serves ``tracking_uri``; None when the server does not tell."""
    if not is_server(tracking_uri):
        import mlflow

        return str(mlflow.__version__)
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    answer: Any = http_request(get_default_host_creds(tracking_uri), "/version", "GET", raise_on_status=False)
    return str(answer.text).strip() if answer.status_code == 200 else None


_PLAIN = (
    (r"Name or service not known|Failed to resolve|name resolution", "there is no such host"),
    (r"Connection refused", "nothing answers there (connection refused): start it, or give another tracking URI"),
    (r"timed out|timeout", "no answer in time: check the address, or give another tracking URI"),
    (r"Connection (broken|aborted|reset)|RemoteDisconnected|IncompleteRead", "the connection was cut"),
    (r"\b401\b|not authenticated", "it wants MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    (r"unsupported URI", "MLflow does not know such an address: use http://, https://, sqlite:/// or postgresql://"),
    (r"filesystem tracking backend", "MLflow no longer writes to a plain directory: use sqlite:///PATH/mlflow.db"),
)
"""What long messages come down to, by what gives them away."""


def one_line(error: Exception) -> str:
    """What went wrong, for people."""
    text = masked(" ".join(str(error).split()))
    for pattern, plain in _PLAIN:
        if re.search(pattern, text, re.IGNORECASE):
            return plain
    text = re.sub(r" *\(Background on this error at: [^)]*\)", "", text)
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"
