"""One file after another from where a tracking server keeps them, each of them whole.

The digest of a file is taken while it arrives. A connection that is cut off is taken up again where it stopped, if the
server can serve parts of a file, now or by the next call: what has come lies in a file that is named by the digest that
the whole will have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mlflow_ngraph.errors import EngineError, TransferError
from mlflow_ngraph.tracking import connection, plain
from mlflow_ngraph.tracking.file_part import CHUNK, ArtifactStore, CutError, FilePart, RefusedError
from mlflow_ngraph.tracking.http_store import HttpStore, configured, timeout

if TYPE_CHECKING:
    from urllib3.util import Retry

    from mlflow_ngraph.tracking.http_store import Get

AT_ONCE = 4
"""Files that come at the same time."""
_RETRIES, _FACTOR = 3, 0.5


class LocalStore(ArtifactStore):
    """A directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        try:
            stream = (self._directory / path).open("rb")
        except OSError as error:
            raise RefusedError(error.strerror or str(error)) from None
        with stream:
            sized(os.fstat(stream.fileno()).st_size)
            stream.seek(part.size)
            part.extend(iter(lambda: stream.read(CHUNK), b""))


class MlflowStore(ArtifactStore):
    """A store that MLflow knows how to read; it gives whole files.

    Parameters
    ----------
    scratch : Path
        A directory on the file system of the parts.
    """

    def __init__(self, repository: Any, scratch: Path, tracking_uri: str) -> None:
        self._repository, self._scratch, self._uri = repository, scratch, tracking_uri

    def settings(self) -> AbstractContextManager[None]:
        return connection.talking(self._uri, "download an engine", connection.RECORDING)

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        from tempfile import TemporaryDirectory

        from mlflow.exceptions import MlflowException

        with TemporaryDirectory(dir=self._scratch, prefix="file-") as place:
            try:
                file = Path(self._repository.download_artifacts(path, place))
            except (MlflowException, OSError) as error:
                # MLflow has tried again where that helps.
                raise RefusedError(connection.one_line(error, self._uri)) from None
            part.adopt(file)


def store_of(location: str, tracking_uri: str, scratch: Path) -> ArtifactStore:
    """The store of an artifact directory.

    Parameters
    ----------
    location : str
        The artifact URI of the directory.
    scratch : Path
        A directory on the file system where files will stay.

    Raises
    ------
    TrackingError
        MLflow does not know such an address.
    """
    address = plain.artifact_address(tracking_uri, location)
    if address is not None:
        http = plain.session(AT_ONCE)

        def read(base: str) -> Get:
            return lambda path, headers: http.get(base + path, headers=headers, stream=True, timeout=timeout())

        return HttpStore(read(address), read(plain.signing_address(address)))
    parts = urlsplit(location)
    if parts.scheme in ("", "file") and not parts.netloc:
        return LocalStore(Path(unquote(parts.path) if parts.scheme else location))
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    with connection.talking(tracking_uri, "find the engine's files", connection.RECORDING):
        repository = get_artifact_repository(location, tracking_uri=tracking_uri)
        if not isinstance(repository, HttpArtifactRepository):
            return MlflowStore(repository, scratch, tracking_uri)
        passed_on = get_default_host_creds(repository.artifact_uri)
        signed = get_default_host_creds(plain.signing_address(repository.artifact_uri))

    def client(credentials: Any) -> Get:
        return lambda path, headers: http_request(
            credentials, path, "GET", max_retries=0, timeout=timeout(), raise_on_status=False,
            extra_headers=dict(headers), stream=True,
        )  # fmt: skip

    return HttpStore(client(passed_on), client(signed))


def bring(
    store: ArtifactStore,
    path: str,
    digest: str,
    part: FilePart,
    name: str,
    sized: Callable[[int], None] = lambda size: None,
) -> None:
    """Make ``part`` the whole file, however often the connection is cut.

    Parameters
    ----------
    digest : str
        Sha256 of the file.
    name : str
        Of the file, for messages.

    Raises
    ------
    EngineError
        It cannot be had, or is not what was logged.
    TransferError
        It did not arrive, or cannot be kept here.
    StoppedError
        Nobody waits for it any more.
    """
    patience = _patience()
    while part.digest != digest:
        before = part.size
        try:
            store.fetch(path, part, sized)
        except RefusedError as error:
            raise EngineError(f"cannot download {name}: {error}") from None
        except CutError as error:
            # As long as a cut connection brings something, there is no reason to give up.
            patience = _again(_patience() if part.size - before >= CHUNK else patience, name, error)
        except OSError as error:
            raise TransferError(f"cannot keep {name} in {part.path.parent}: {error.strerror or error}") from None
        else:
            if part.digest == digest:
                return
            if not part.resumed:
                raise EngineError(f"{name} is not what was logged: it was changed, or cut off on the way")
            part.restart()


def content(store: ArtifactStore, path: str, place: Path, name: str, most: int) -> bytes:
    """The content of a small file that nobody has checked.

    Parameters
    ----------
    place : Path
        A file to put it in meanwhile.
    most : int
        Bytes that it may have.

    Raises
    ------
    EngineError
        It cannot be had, or is larger.
    """
    patience = _patience()
    part = FilePart(place)
    while True:
        try:
            store.fetch(path, part)
        except RefusedError as error:
            raise EngineError(f"cannot download {name}: {error}") from None
        except CutError as error:
            patience = _again(patience, name, error)
        else:
            if part.size > most:
                raise EngineError(f"{name} is not what was logged: it has {part.size} bytes")
            return place.read_bytes()


def _again(patience: Retry, name: str, error: CutError) -> Retry:
    """Wait before the next attempt, longer from time to time.

    Raises
    ------
    TransferError
        There were enough of them.
    """
    from urllib3.exceptions import MaxRetryError

    try:
        patience = patience.increment("GET", name, error=error)
    except MaxRetryError:
        raise TransferError(f"cannot download {name}: {error}; trying again goes on where this stopped") from None
    patience.sleep()
    return patience


def _patience() -> Retry:
    """How often and how fast to try again: as MLflow is configured, which is less patient here by default."""
    from urllib3.util import Retry

    return Retry(
        total=int(configured("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)),
        backoff_factor=configured("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", _FACTOR),
    )
