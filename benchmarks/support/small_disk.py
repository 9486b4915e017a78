"""A disk of a few megabytes that can be filled, emptied and made read only. Needs the rights to mount one."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PIECE = 1 << 16


class SmallDisk:
    """A file system in memory.

    Parameters
    ----------
    place : Path
        Where it is mounted.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Leave not a byte."""
        with self._ballast.open("ab", buffering=0) as stream:
            for size in (_PIECE, 512, 1):
                try:
                    while stream.write(b"\0" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def freeze(self, *, frozen: bool = True) -> None:
        """Make it read only, or writable again."""
        subprocess.run(["mount", "-o", f"remount,{'ro' if frozen else 'rw'}", str(self.place)], check=True)


@contextmanager
def mounted(place: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A disk of so many megabytes."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)], check=True)
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
