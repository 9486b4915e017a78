"""Free space of disks: required before a study, and errors of full disks."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from mlflow_ngraph.errors import DiskFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOTHING_BYTES = 64 << 10
GB = 1e9
_TEXTS = ("no space left on device", "disk quota exceeded")
"""Messages of runtimes that hide the error's number."""


def free_bytes(directory: Path) -> int:
    """Free space on the disk of a directory, which need not exist yet."""
    return shutil.disk_usage(existing(directory)).free


def existing(directory: Path) -> Path:
    """The directory, or its nearest existing parent."""
    return next(path for path in (directory, *directory.parents) if path.exists())


def is_lacking(error: BaseException) -> bool:
    """Return True when an error means that a disk is full."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error).lower() for text in _TEXTS)


def is_full(directory: Path) -> bool:
    """Return True when the disk of a directory is full."""
    return free_bytes(directory) < _NOTHING_BYTES


def require(needed: int, directory: Path) -> None:
    """Require free space on a disk. Raises `DiskFullError` if it has less."""
    free = free_bytes(directory)
    if free < needed:
        raise DiskFullError(
            f"the study needs about {needed / GB:.1f} GB in {directory}, and {free / GB:.1f} GB are free there: free some "
            "room, choose another place with --home, or measure fewer models, compilers or batch sizes at a time"
        )


def lacking(what: str, directory: Path) -> DiskFullError:
    """Create the error that ends the study in ``directory`` on a full disk, while ``what`` was done."""
    return DiskFullError(
        f"no space left on a disk while {what}; nothing measured is lost: free some room, then go on with --resume "
        f"(the study is in {directory})"
    )
