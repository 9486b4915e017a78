"""Connect to tracking servers: URIs, MLflow clients with short timeouts, one-line errors, paged look-ups."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from filelock import FileLock

from mlflow_ngraph import user_cache
from mlflow_ngraph.addresses import HIDDEN, redacted, shown
from mlflow_ngraph.errors import TrackingError, UnreachableError, require_known

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run
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
"""Configuration of MLflow for recording, where the user has set nothing else."""
IN_TIME = {
    **RECORDING,
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "PGCONNECT_TIMEOUT": "4",
}
"""The same while a study, and a person, waits: MLflow's own would be patient for minutes at every request."""
FORBIDDEN = "PERMISSION_DENIED"
NO_SUCH = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's code of the error about what does not exist, such as a run that ``mlflow gc`` has removed."""
_BYTES_PER_S = 2e6
"""Least upload speed of a server, which passes files on to their store before it answers."""
_LONGEST_MESSAGE = 300
_MAKING_TABLES_S = 60.0
AMBIGUOUS = (
    "write the characters @ / ? # : of a user or a password as %40 %2F %3F %23 %3A, or give them in "
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
)
"""Remedy for an address in which the end of the login is ambiguous."""


def resolve_uri(tracking_uri: str | None) -> str:
    """The tracking URI that MLflow uses when it is given ``tracking_uri``.

    MLflow is not imported for it where nobody can have told it something else than its environment and folder say.
    """
    if tracking_uri:
        return tracking_uri
    if "mlflow" not in sys.modules:
        configured = os.environ.get("MLFLOW_TRACKING_URI") or _database_here()
        if configured:
            return configured
    import mlflow

    return str(mlflow.get_tracking_uri())


def _database_here() -> str | None:
    """The store that MLflow uses by default, if it is there: the database of this folder, unless it has runs as files."""
    path = Path("mlflow.db").absolute()
    files = any(Path("mlruns").glob("[0-9]*/meta.yaml"))
    return f"sqlite:///{quote(str(path))}" if path.is_file() and not files else None


def connect(tracking_uri: str) -> MlflowClient:
    """A client of ``tracking_uri``. MLflow's own notes about making a new database are held back.

    Raises `TrackingError` if the address can be read in more than one way, or not at all.
    """
    _require_clear(tracking_uri)
    from mlflow import MlflowClient

    from mlflow_ngraph.tracking import answer_limits

    answer_limits.limit_client()
    for name in ("mlflow.store.db.utils", "alembic.runtime.migration", "mlflow.tracking.fluent"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _one_at_a_time(tracking_uri):
        return MlflowClient(tracking_uri)


@contextmanager
def _one_at_a_time(tracking_uri: str) -> Iterator[None]:
    """Let one process of this user make the tables of a new database.

    MLflow's own lock is a file in the temporary folder, of which each child has another.
    """
    with ExitStack() as stack:
        if is_database(tracking_uri):
            with suppress(OSError):  # without a folder for it, as without this package
                digest = hashlib.sha256(tracking_uri.encode()).hexdigest()[:16]
                stack.enter_context(FileLock(user_cache.made("databases") / f"{digest}.lock", timeout=_MAKING_TABLES_S))
        yield


def is_server(tracking_uri: str) -> bool:
    """True if ``tracking_uri`` is a server rather than a store on this machine or a database."""
    return tracking_uri.partition("://")[0].lower() in ("http", "https")


def is_database(tracking_uri: str) -> bool:
    """True if MLflow reads and writes ``tracking_uri`` as a database by itself."""
    return tracking_uri.partition("://")[0].lower().partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")


@contextmanager
def talking(tracking_uri: str, doing: str, settings: dict[str, str]) -> Iterator[None]:
    """Run a block that talks to a tracking server, with ``settings`` in the environment where they are not set.

    Raises `TrackingError` if the server refuses, or as `UnreachableError` if it does not answer; one line that says
    what we were ``doing``.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    except ImportError as error:
        raise TrackingError(
            f"tracking server {shown(tracking_uri)}: the driver {error.name or error} is not installed here: install it with pip"
        ) from error
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        kind = UnreachableError if _AWAY.search(str(error)) else TrackingError
        said = f"tracking server {shown(tracking_uri)}: cannot {doing}: {one_line(error, tracking_uri)}"
        between = proxied(tracking_uri) if _MAY_BE_A_PROXY.search(str(error)) else ""
        raise kind(said + between) from error
    except Exception as error:
        if not is_server(tracking_uri) or isinstance(error, OSError) or not _is_of_client(error):
            raise
        # MLflow's client takes every answer for what it should be.
        raise TrackingError(
            f"tracking server {shown(tracking_uri)}: cannot {doing}: it answered something that is not MLflow's "
            f"({type(error).__name__})"
        ) from error
    finally:
        for name in added:
            os.environ.pop(name, None)


def _is_of_client(error: Exception) -> bool:
    """True if an error was raised by MLflow's client, or by what it reads messages with."""
    (*_, (frame, _)) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(("mlflow.", "google.protobuf."))


@contextmanager
def uploading(size: int) -> Iterator[None]:
    """Within `talking`: extend the timeout by the upload time of so many bytes, unless the user has set one."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ.get(name)
    if before is None or before != IN_TIME[name]:
        yield
        return
    os.environ[name] = str(int(before) + round(size / _BYTES_PER_S))
    try:
        yield
    finally:
        os.environ[name] = before


def reach(tracking_uri: str, *, create: bool = False) -> MlflowClient:
    """A client of a server that answered just now.

    ``create`` lets MLflow make a missing database file, which takes long and helps no reader. Raises `TrackingError` if
    nothing answers within about ten seconds, it refuses, or there is no such file.
    """
    _require_clear(tracking_uri)
    missing = None if create else database_file(tracking_uri)
    if missing is not None and not missing.exists():
        raise TrackingError(
            f"tracking server {shown(tracking_uri)}: nothing is recorded there yet: there is no file {missing}; give another "
            "tracking URI, or run 'mlflow-ngraph benchmark' or 'mlflow-ngraph study sync' first"
        )
    with talking(tracking_uri, "reach it", PREFLIGHT):
        if is_database(tracking_uri):
            _probe_database(tracking_uri)
        client = connect(tracking_uri)
        client.search_experiments(max_results=1)
    return client


def _require_clear(tracking_uri: str) -> None:
    if HIDDEN in shown(tracking_uri):
        raise TrackingError(f"tracking server {shown(tracking_uri)}: the address cannot be read: {AMBIGUOUS}")


def database_file(tracking_uri: str) -> Path | None:
    """The file of an SQLite database, whether it is there or not; None of everything else."""
    parts = urlsplit(tracking_uri)
    if parts.scheme.partition("+")[0] != "sqlite" or parts.netloc or len(parts.path) < 2 or ":memory:" in tracking_uri:
        return None
    return Path(unquote(parts.path[1:])).absolute()


def every(fetch: Callable[[str | None], PagedList[T]]) -> list[T]:
    """All pages of a search; ``fetch`` gets the token of the page."""
    entries: list[T] = []
    token, seen = None, set[str]()
    while True:
        page = fetch(token)
        entries += page
        token = page.token
        if not token:
            return entries
        if token in seen:
            raise TrackingError("it answers with the same page again and again")
        seen.add(token)


def experiments(client: MlflowClient, named: Sequence[str] | None = None) -> dict[str, str]:
    """Names of experiments by their ids: of those that are named, or of all that are not deleted.

    Raises `UnknownNameError` if there is none of a name.
    """
    found: list[Experiment] = every(lambda token: client.search_experiments(page_token=token))
    names = {experiment.experiment_id: experiment.name for experiment in found}
    require_known("experiment", named or (), names.values())
    return {key: name for key, name in names.items() if not named or name in named}


def kept_run(client: MlflowClient, run_id: str) -> Run:
    """Get a run that is not deleted. Raises `TrackingError` if it is in MLflow's trash."""
    run = client.get_run(run_id)
    if run.info.lifecycle_stage != "active":
        raise TrackingError(
            f"run {run_id} is deleted: restore it (mlflow runs restore --run-id {run_id}), or name another"
        )
    return run


def is_deleted(client: MlflowClient, run_id: str) -> bool:
    """True if a run is in MLflow's trash, or removed from there by ``mlflow gc``."""
    kept = False
    with unless_gone():
        kept = client.get_run(run_id).info.lifecycle_stage == "active"
    return not kept


def require_id(made: str) -> None:
    """Check the id of what a server made: MLflow takes an empty answer, such as a proxy's, for one without fields.

    Raises `UnreachableError` if it is none.
    """
    if not re.fullmatch(r"(?:m-)?[0-9a-f]{32}", made):
        raise UnreachableError("the tracking server answered without the id of what it was to make")


@contextmanager
def unless_gone() -> Iterator[None]:
    """Run a block about something that may be gone: MLflow's client repeats a request whose answer was lost.

    The block ends where the server has no such thing.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != NO_SUCH:
            raise


def _probe_database(tracking_uri: str) -> None:
    """Open one connection: MLflow itself tries ten times, for minutes, before it reports a missing database."""
    from sqlalchemy import create_engine

    engine = create_engine(tracking_uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def get(tracking_uri: str, path: str, params: Any = None) -> Any:
    """A server's answer to a request that MLflow's client has no method for, whatever its status."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    return http_request(get_default_host_creds(tracking_uri), path, "GET", raise_on_status=False, params=params)


def server_version(tracking_uri: str) -> str | None:
    """The version of MLflow that serves ``tracking_uri``; None when the server does not tell."""
    if not is_server(tracking_uri):
        import mlflow

        return str(mlflow.__version__)
    answer = get(tracking_uri, "/version")
    return str(answer.text).strip() if answer.status_code == 200 else None


def server_time(tracking_uri: str) -> float:
    """Time of a server in Unix seconds; by this machine's clock where it does not tell."""
    if is_server(tracking_uri):
        answer = get(tracking_uri, "/version")
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(answer.headers.get("Date")).timestamp()
    return time.time()


_PLAIN = (
    (r"Name or service not known|Failed to resolve|name resolution", "there is no such host"),
    (r"Connection refused", "nothing answers there (connection refused): start it, or give another tracking URI"),
    (r"timed out|timeout", "no answer in time: check the address, or give another tracking URI"),
    (r"Connection (broken|aborted|reset)|RemoteDisconnected|IncompleteRead", "the connection was cut"),
    (r"too many 5\d\d", "it answers with errors of its own (5xx): try again, or look into its log"),
    (r"\b401\b|not authenticated", "it wants MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
    (
        r"\b403\b|PERMISSION_DENIED",
        "this login may not do that there: ask the owner of the experiment for the permission, or give --experiment NAME of your own",
    ),
    (
        r"Expecting value|not in a valid JSON|<html",
        "it does not answer as MLflow does: a proxy or a page to log in may be between",
    ),
    (r"IntegrityError|UniqueViolation|UNIQUE constraint", "its database has this already"),
    (r"unsupported URI", "MLflow does not know such an address: use http://, https://, sqlite:/// or postgresql://"),
    (r"filesystem tracking backend", "MLflow no longer writes to a plain directory: use sqlite:///PATH/mlflow.db"),
)
"""Short forms of long messages, each with the pattern that it replaces."""


_AWAY = re.compile(
    "Name or service not known|Failed to resolve|name resolution|Connection (?:refused|broken|aborted|reset)|timed out|timeout"
    r"|RemoteDisconnected|IncompleteRead|Max retries exceeded|error code 5\d\d|too many 5\d\d",
    re.IGNORECASE,
)
"""Pattern of errors of a server that is away or unwell."""


_MAY_BE_A_PROXY = re.compile(rf"{_AWAY.pattern}|proxy|tunnel|\b(?:403|407|50[234])\b", re.IGNORECASE)
"""Pattern of errors that a proxy before a server may have sent."""


def proxied(tracking_uri: str) -> str:
    """The proxy of the environment that a server is asked through, as the end of a sentence; empty where there is none."""
    from requests.utils import get_environ_proxies, select_proxy

    scheme, host = urlsplit(tracking_uri).scheme.lower(), urlsplit(tracking_uri).hostname
    address = select_proxy(tracking_uri, get_environ_proxies(tracking_uri)) if is_server(tracking_uri) else None
    if address is None:
        return ""
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    variable = next((name for name in names if os.environ.get(name) == address), "of the system")
    return f"; it is asked through the proxy {shown(address)} ({variable}): with NO_PROXY={host} it is asked directly"


def one_line(error: Exception, *addresses: str) -> str:
    """Error in one line for people, without logins of these addresses."""
    text = redacted(" ".join(str(error).split()), *addresses)
    for pattern, plain in _PLAIN:
        if re.search(pattern, text, re.IGNORECASE):
            return plain
    text = re.sub(r" *(?:\[SQL: .*|\(Background on this error at: [^)]*\))", "", text)
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"
