"""A file that is on its way here, with its digest, and where it may come from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

CHUNK = 1 << 20


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
