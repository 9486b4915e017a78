"""The place beside a directory where it is made before it gets its name."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_ngraph.errors import UsageError

_PACKAGE = "package"
_REPLACED = "replaced"
_LOCK = "lock"


class Landing:
    """A place that this process alone uses.

    Parameters
    ----------
    place : Path
        The directory itself.
    target : Path
        What becomes of the package in it.
    """

    def __init__(self, place: Path, target: Path) -> None:
        self._place, self._target = place, target

    @property
    def package(self) -> Path:
        """Where the package is made. What an interrupted call left is still there."""
        return self._place / _PACKAGE

    def land(self) -> None:
        """Give the package its name, in the place of what has that name."""
        replaced = self._place / _REPLACED
        if replaced.exists():
            shutil.rmtree(replaced)
        if self._target.exists():
            self._target.rename(replaced)
        self.package.rename(self._target)
        self.discard()

    def discard(self) -> None:
        """Remove the place with all that is in it."""
        shutil.rmtree(self._place, ignore_errors=True)


@contextmanager
def landing(target: Path) -> Iterator[Landing]:
    """The place beside ``target``, on the same file system; waits while another process has it.

    Raises
    ------
    UsageError
        Nothing can be written there.
    """
    place = target.parent / f".{target.name}.pull"
    try:
        handle = _held(place)
    except OSError as error:
        raise UsageError(f"cannot write to {target.parent}: {error.strerror}; choose another place") from None
    try:
        yield Landing(place, target)
    finally:
        os.close(handle)


def _held(place: Path) -> int:
    """A lock on a place that is still there once it is ours: whoever had it may have removed it when done."""
    while True:
        place.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            handle = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), (place / _LOCK).stat()):
                    return handle
            os.close(handle)
