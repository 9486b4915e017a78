"""Download one file resumably and verify its digest, from any `ArtifactStore`; small files also unverified.

The digest is taken while the file arrives. What has come lies in a file named by the digest of the whole, so a cut
transfer goes on where it stopped, in this call or the next.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import EngineError, TransferError

if TYPE_CHECKING:
    from urllib3.util import Retry

AT_ONCE = 4
"""Files that come at the same time."""
_RETRIES, _FACTOR = 3, 0.5
CHUNK = 1 << 20


class CutError(Exception):
    """A connection ended too early, or there was none: trying again may help."""


class RefusedError(Exception):
    """The store does not give the file: trying again does not help."""


class StoppedError(Exception):
    """Another file failed, and this one is not wanted any more."""


class FilePart:
    """The part of a file that has arrived, with its digest.

    ``came`` is told of bytes before they are written; fewer than none where they were thrown away. What it raises stops
    the download. ``stopped`` is True once the file is no longer wanted.
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
        """True if some of it is from an earlier attempt; only the digest of the whole file tells if that part is right."""

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def restart(self) -> None:
        """Discard the part."""
        self.path.unlink(missing_ok=True)
        self._came(-self.size)
        self.size, self._digest, self.resumed = 0, hashlib.sha256(), False

    def extend(self, chunks: Iterator[bytes]) -> None:
        """Append arriving bytes; bytes before an error are kept."""
        with self.path.open("ab") as stream:
            for chunk in chunks:
                self._taken(chunk)
                stream.write(chunk)

    def adopt(self, file: Path) -> None:
        """Take a complete file."""
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
        """Configuration of the store's client while files are fetched, set once for all files."""
        return nullcontext()

    @abstractmethod
    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        """Add the missing bytes of a file to ``part``, or all of it.

        ``sized`` is called with the size of the file where the store announces it. Raises `CutError` or `RefusedError`
        if it did not come, or not to its end.
        """


def bring(
    store: ArtifactStore,
    path: str,
    digest: str,
    part: FilePart,
    name: str,
    sized: Callable[[int], None] = lambda size: None,
) -> None:
    """Make ``part`` the whole file, however often the connection is cut.

    ``name`` is for messages. Raises `EngineError` if the file is missing or differs from the logged one,
    `TransferError` if it did not arrive or cannot be kept here, and `StoppedError` if it is no longer wanted.
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
    """Content of a small file, unverified.

    It lies in ``place`` meanwhile. Raises `EngineError` if it cannot be had, or has more than ``most`` bytes: the
    download stops there.
    """

    def bound(size: int) -> None:
        if size > most:
            raise EngineError(f"{name} is not what was logged: it has more than {most} bytes")

    patience = _patience()
    part = FilePart(place, lambda count: bound(part.size))
    while True:
        try:
            store.fetch(path, part, bound)
        except RefusedError as error:
            raise EngineError(f"cannot download {name}: {error}") from None
        except CutError as error:
            patience = _again(patience, name, error)
        else:
            return place.read_bytes()


def _again(patience: Retry, name: str, error: CutError) -> Retry:
    """Wait before the next attempt, longer from time to time. Raises `TransferError` if there were enough of them."""
    from urllib3.exceptions import MaxRetryError

    try:
        patience = patience.increment("GET", name, error=error)
    except MaxRetryError:
        raise TransferError(f"cannot download {name}: {error}; trying again goes on where this stopped") from None
    patience.sleep()
    return patience


def _patience() -> Retry:
    """Number and pace of retries, as MLflow is configured, which is less patient here by default."""
    from urllib3.util import Retry

    return Retry(
        total=int(configured("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)),
        backoff_factor=configured("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", _FACTOR),
    )


def configured(name: str, default: float) -> float:
    """A number from the environment, or another one where it has none."""
    try:
        return float(os.environ[name])
    except (KeyError, ValueError):
        return default
