"""A locked staging directory next to its target, which is renamed to it when complete."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_ngraph.engines.files import exposed
from mlflow_ngraph.errors import UsageError

_PACKAGE = "package"
_LOCK = "lock"


class StagingDirectory:
    """A staging directory that this process alone uses."""

    def __init__(self, place: Path, target: Path) -> None:
        self._place, self._target = place, target

    @property
    def package(self) -> Path:
        """Directory to fill. The files of an interrupted call are still there."""
        return self._place / _PACKAGE

    def publish(self) -> None:
        """Rename the package to its target, and replace the old one."""
        if self._target.exists():
            self._target.rename(Path(tempfile.mkdtemp(dir=self._place)) / self._target.name)
        self.package.rename(self._target)
        self.discard()

    def discard(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)


@contextmanager
def staging_directory(target: Path) -> Iterator[StagingDirectory]:
    """Lock the staging directory of ``target``, on the same file system; waits for other processes.

    It is this user's alone: whoever else could put a link into it would choose which files are replaced or removed.

    Raises `UsageError` if it is not writable, or another user can write to it.
    """
    place = target.parent / f".{target.name}.pull"
    try:
        handle = _held(place)
    except OSError as error:
        raise UsageError(f"cannot write to {target.parent}: {error.strerror}; choose another place") from None
    try:
        yield StagingDirectory(place, target)
    finally:
        os.close(handle)


def _held(place: Path) -> int:
    """Lock a directory that still exists after locking: the previous holder may have removed it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:
            _require_own(place)
        with suppress(FileNotFoundError):
            handle = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), (place / _LOCK).stat()):
                    return handle
            os.close(handle)


def _require_own(place: Path) -> None:
    with suppress(FileNotFoundError):
        if problem := exposed(place):
            raise UsageError(f"{problem}: whoever made it could change the engine; remove it, or choose another place")
