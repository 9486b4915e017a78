"""One file after another from where a tracking server keeps them, each of them whole.

The digest of a file is taken while it arrives. A connection that is cut off is taken up again where it stopped, if the
server can serve parts of a file, now or by the next call: what has come lies in a file that is named by the digest that
the whole will have.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from mlflow_ngraph.errors import EngineError, TransferError
from mlflow_ngraph.tracking import connection, plain

if TYPE_CHECKING:
    import requests
    from urllib3.util import Retry

    Get = Callable[[str, Mapping[str, str]], requests.Response]
    """Asks for a path below the base of a store, with headers, and streams the answer."""

CHUNK = 1 << 20
AT_ONCE = 4
"""Files that come at the same time."""
_RETRIES, _FACTOR, _TIMEOUT_S = 3, 0.5, 30.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class CutError(Exception):
    """A connection ended too early, or there was none: trying again may help."""


class RefusedError(Exception):
    """The store does not give the file: trying again does not help."""


class StoppedError(Exception):
    """Another file failed, and this one is not wanted any more."""


class FilePart:
    """What has come of a file, with its digest.

    Parameters
    ----------
    came : Callable[[int], None]
        Told of bytes that are there now and were not before; fewer than none where they were thrown away.
    stopped : Callable[[], bool]
        Whether nobody waits for the file any more.
    """

    def __init__(
        self, path: Path, came: Callable[[int], None] = lambda count: None, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.path = path
        self.size = 0
        self._came, self._stopped = came, stopped
        self._digest = hashlib.sha256()
        with suppress(FileNotFoundError), path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                self._taken(chunk)
        self.resumed = self.size > 0
        """Whether some of it is from an earlier attempt, of which only the digest of the whole will tell its worth."""

    @property
    def digest(self) -> str:
        """sha256 of what is there."""
        return self._digest.hexdigest()

    def restart(self) -> None:
        """Throw away what is there."""
        self.path.unlink(missing_ok=True)
        self._came(-self.size)
        self.size, self._digest, self.resumed = 0, hashlib.sha256(), False

    def extend(self, chunks: Iterator[bytes]) -> None:
        """Add what arrives; whatever came before it failed is there."""
        with self.path.open("ab") as stream:
            for chunk in chunks:
                stream.write(chunk)
                self._taken(chunk)

    def adopt(self, file: Path) -> None:
        """Take a whole file as it is."""
        self.restart()
        file.replace(self.path)
        with self.path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                self._taken(chunk)

    def _taken(self, chunk: bytes) -> None:
        if self._stopped():
            raise StoppedError
        self._digest.update(chunk)
        self.size += len(chunk)
        self._came(len(chunk))


class ArtifactStore(ABC):
    """A directory of artifacts."""

    def settings(self) -> AbstractContextManager[None]:
        """What all fetching stands in, once for all files: how the store's client has to behave."""
        return nullcontext()

    @abstractmethod
    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        """Add to ``part`` what it lacks of a file, or all of it.

        Parameters
        ----------
        sized : Callable[[int], None]
            Told the size of the file where the store says it beforehand.

        Raises
        ------
        CutError, RefusedError
            It did not come, or not to its end.
        """


class HttpStore(ArtifactStore):
    """A server that passes artifacts on."""

    def __init__(self, get: Get) -> None:
        self._get = get

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        # No compression on the way: bytes are counted, and asked for by their place.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={part.size}-"} if part.size else {})}
        with _cuts(), self._get(f"/{quote(path)}", headers) as answer:
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
            part.extend(answer.iter_content(CHUNK))
            if size is not None and part.size < size:
                raise CutError(f"the connection ended after {part.size} of {size} bytes")


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
        return HttpStore(
            lambda path, headers: http.get(address + path, headers=headers, stream=True, timeout=_timeout())
        )
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
        credentials = get_default_host_creds(repository.artifact_uri)

    def get(path: str, headers: Mapping[str, str]) -> requests.Response:
        answer: requests.Response = http_request(
            credentials, path, "GET", max_retries=0, timeout=_timeout(), raise_on_status=False,
            extra_headers=dict(headers), stream=True,
        )  # fmt: skip
        return answer

    return HttpStore(get)


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
        total=int(_configured("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)),
        backoff_factor=_configured("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", _FACTOR),
    )


def _timeout() -> float:
    return _configured("MLFLOW_HTTP_REQUEST_TIMEOUT", _TIMEOUT_S)


def _configured(name: str, default: float) -> float:
    try:
        return float(os.environ[name])
    except (KeyError, ValueError):
        return default


@contextmanager
def _cuts() -> Iterator[None]:
    """Whatever the network does is a cut connection."""
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


def _continues(answer: requests.Response, offset: int) -> bool:
    """Whether an answer begins where it was asked to."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _length(answer: requests.Response, offset: int) -> int | None:
    """Bytes of the whole file; None where the server does not tell."""
    length = answer.headers.get("Content-Length", "")
    encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
    return offset + int(length) if length.isdigit() and not encoded else None
