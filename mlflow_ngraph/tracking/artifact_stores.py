"""Artifact stores that files are fetched from: a directory, a tracking server, or a store that MLflow's client reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from mlflow_ngraph import addresses, documents
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import connection, plain_http
from mlflow_ngraph.tracking.transfer import (
    AT_ONCE,
    CHUNK,
    ArtifactStore,
    CutError,
    FilePart,
    RefusedError,
    configured,
    content,
)

if TYPE_CHECKING:
    import requests
    from mlflow import MlflowClient

    Get = Callable[[str, Mapping[str, str]], requests.Response]
    """Asks for a path below the base of a store, with headers, and streams the answer."""

_TIMEOUT_S = 30.0
_REASON_BYTES = 1 << 16
"""Longest part that is read of an answer that is not a file."""
MOST_OF_RUN = 1 << 30
"""Bytes of the largest file of a run that is read."""
_WITH_LOGIN = ("mlflow-artifacts", "http", "https")
"""Schemes of artifact URIs that MLflow's client reads with the login of the tracking server."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


def store_of(location: str, tracking_uri: str, scratch: Path) -> ArtifactStore:
    """The store of the directory with this artifact URI. Raises `TrackingError` for an address unknown to MLflow.

    ``scratch`` is a directory on the file system where files will stay.
    """
    address = plain_http.artifact_address(tracking_uri, location)
    if address is not None:
        http = plain_http.session(AT_ONCE)
        return HttpStore(_get(http, address), _get(http, plain_http.signing_address(address)))
    directory = local_directory(location)
    if directory is not None:
        return LocalStore(directory)
    import requests
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    with connection.talking(tracking_uri, "find the files", connection.RECORDING):
        repository = get_artifact_repository(location, tracking_uri=tracking_uri)
        if not isinstance(repository, HttpArtifactRepository):
            return MlflowStore(repository, scratch, tracking_uri)
        if not is_of_server(location, tracking_uri):
            return HttpStore(_get(requests.Session(), repository.artifact_uri))  # without the login of the server
        passed_on = get_default_host_creds(repository.artifact_uri)
        signed = get_default_host_creds(plain_http.signing_address(repository.artifact_uri))

    def client(credentials: Any) -> Get:
        return lambda path, headers: http_request(
            credentials, path, "GET", max_retries=0, timeout=timeout(), raise_on_status=False,
            extra_headers=dict(headers), stream=True,
        )  # fmt: skip

    return HttpStore(client(passed_on), client(signed))


def run_file(artifact_uri: str, name: str, tracking_uri: str) -> bytes:
    """A file of a run.

    Raises `TrackingError` if it cannot be had, or is larger than any that a study records.
    """
    with TemporaryDirectory(prefix="ngraph-file-") as temporary:
        store = store_of(artifact_uri, tracking_uri, Path(temporary))
        try:
            with store.settings():
                return content(store, name, Path(temporary) / "file", f"{name} of a run", MOST_OF_RUN)
        except EngineError as error:
            raise TrackingError(str(error)) from None


def run_files(client: MlflowClient, run_id: str, artifact_uri: str, tracking_uri: str) -> set[str]:
    """Names of the files of a run. Raises `TrackingError` if they are on a foreign host."""
    require_host(f"run {run_id}", artifact_uri, tracking_uri)
    return {file.path for file in client.list_artifacts(run_id)}


def require_host(name: str, location: str, tracking_uri: str) -> None:
    """Raise `TrackingError` if the files of something are on a foreign host."""
    if reason := foreign_host(location, tracking_uri):
        raise TrackingError(f"{name}: {reason}")


def foreign_host(location: str, tracking_uri: str) -> str:
    """Reason not to let MLflow's client use an artifact URI, as it sends the server's login to any host; else empty."""
    if urlsplit(location).scheme not in _WITH_LOGIN or is_of_server(location, tracking_uri):
        return ""
    return f"its files are said to be at {addresses.shown(location)}, which gets no login of {addresses.shown(tracking_uri)}"


def is_of_server(location: str, tracking_uri: str) -> bool:
    """True if an artifact URI is on the tracking server itself, or both are files of this machine."""
    if local_directory(location) is not None:
        return not connection.is_server(tracking_uri) and not urlsplit(tracking_uri).hostname
    place, server = urlsplit(location), urlsplit(tracking_uri)
    if place.scheme == "mlflow-artifacts":
        place = place._replace(scheme=server.scheme, netloc=place.netloc or server.netloc)
    return connection.is_server(tracking_uri) and _origin(place) == _origin(server)


def _origin(parts: SplitResult) -> tuple[str, str]:
    host = parts.netloc.rpartition("@")[2].lower()
    return parts.scheme, host.removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ""))


def local_directory(location: str) -> Path | None:
    """The directory of this machine that an artifact URI names, if it does."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(unquote(parts.path) if parts.scheme else location)


class LocalStore(ArtifactStore):
    """A directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        try:
            stream = documents.opened(self._directory / path)
        except OSError as error:
            raise RefusedError(error.strerror or str(error)) from None
        with stream:
            sized(os.fstat(stream.fileno()).st_size)
            stream.seek(part.size)
            part.extend(iter(lambda: stream.read(CHUNK), b""))


class MlflowStore(ArtifactStore):
    """A store that MLflow knows how to read; it gives whole files. ``scratch`` is on the file system of the parts."""

    def __init__(self, repository: Any, scratch: Path, tracking_uri: str) -> None:
        self._repository, self._scratch, self._uri = repository, scratch, tracking_uri

    def settings(self) -> AbstractContextManager[None]:
        return connection.talking(self._uri, "download an engine", connection.RECORDING)

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        from mlflow.exceptions import MlflowException

        with TemporaryDirectory(dir=self._scratch, prefix="file-") as place:
            try:
                folder = str(PurePosixPath(path).parent)
                listed = self._repository.list_artifacts(None if folder == "." else folder)
                sizes = [file.file_size for file in listed if file.path == path]
                if sizes and sizes[0] is not None:
                    sized(sizes[0])  # whole files come: nothing could stop a large one later
                file = Path(self._repository.download_artifacts(path, place))
            except (MlflowException, OSError) as error:
                # MLflow has tried again where that helps.
                raise RefusedError(connection.one_line(error, self._uri)) from None
            part.adopt(file)


class HttpStore(ArtifactStore):
    """A server that passes artifacts on, or signs their addresses.

    ``sign`` asks it for an address of the same file in the store behind it, for servers that pass nothing on.
    """

    def __init__(self, get: Get, sign: Get | None = None) -> None:
        self._get, self._sign = get, sign
        self._signs = False
        """True once it has refused to pass files on."""

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        from mlflow_ngraph.tracking import answer_limits

        # No compression on the way: bytes are counted, and asked for by their place.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={part.size}-"} if part.size else {})}
        with _cuts(), self._answer(f"/{quote(path)}", headers) as answer:
            if answer.status_code == 416:  # the part is longer than the file
                part.restart()
                raise CutError("it has fewer bytes than came before")
            if answer.status_code in _TRANSIENT:
                raise CutError(f"the server answers {answer.status_code} {answer.reason}")
            if not answer.ok:
                raise RefusedError(f"the server answers {answer.status_code} {answer.reason}")
            if part.size and not _continues(answer, part.size):
                part.restart()
            size = _length(answer, part.size)
            if size is not None:
                sized(size)
            part.extend(answer_limits.pieces(answer, timeout()))
            if size is not None and part.size < size:
                raise CutError(f"the connection ended after {part.size} of {size} bytes")

    def _answer(self, path: str, headers: Mapping[str, str]) -> requests.Response:
        if not self._signs:
            answer = self._get(path, headers)
            if self._sign is None or not _passes_nothing_on(answer):
                return answer
            answer.close()
            self._signs = True
        assert self._sign is not None
        return _at_signed_address(self._sign(path, {}), headers)


def _get(http: requests.Session, base: str) -> Get:
    return lambda path, headers: http.get(base + path, headers=headers, stream=True, timeout=timeout())


def timeout() -> float:
    """Seconds for which a server may be silent, as MLflow is configured."""
    return configured("MLFLOW_HTTP_REQUEST_TIMEOUT", _TIMEOUT_S)


@contextmanager
def _cuts() -> Iterator[None]:
    """Turn every error of the network into a cut connection."""
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        raise CutError(connection.one_line(error)) from None
    except Exception as error:
        # MLflow's client has a kind of its own for all of them; it need not have been imported.
        if not type(error).__module__.startswith("mlflow."):
            raise
        raise CutError(connection.one_line(error)) from None


def _passes_nothing_on(answer: requests.Response) -> bool:
    """Test if a server refuses because files are to be read where they lie, as MLflow's may from 3.18 on."""
    if answer.status_code != 403:
        return False
    try:
        said = json.loads(next(answer.iter_content(_REASON_BYTES), b""))
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("artifacts_presigned_only") is True


def _at_signed_address(told: requests.Response, headers: Mapping[str, str]) -> requests.Response:
    """Request the signed address that a server answered with; returns its own answer if it refused.

    The login is for the server alone: nothing of it goes there.
    """
    import requests

    if not told.ok:
        return told
    with told:
        try:
            signed = json.loads(next(told.iter_content(_REASON_BYTES), b""))
            address, needed = str(signed["url"]), {str(name): str(value) for name, value in signed["headers"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RefusedError("the server does not say where it lies") from None
    unchecked = os.environ.get("MLFLOW_S3_IGNORE_TLS", "").lower() in ("true", "1")
    try:
        return requests.get(
            address, headers={**needed, **headers}, stream=True, timeout=timeout(), verify=not unchecked
        )
    except requests.RequestException as error:
        # Its message has the address, and whoever has that may read.
        raise CutError(f"the store of the server: {type(error).__name__}") from None


def _continues(answer: requests.Response, offset: int) -> bool:
    """Test if an answer begins at the requested offset."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _length(answer: requests.Response, offset: int) -> int | None:
    """Bytes of the whole file; None where the server does not tell."""
    length = answer.headers.get("Content-Length", "")
    encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
    return offset + int(length) if length.isdigit() and not encoded else None
