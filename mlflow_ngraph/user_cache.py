"""Make directories in the user's cache, and write files there atomically, ignoring a full or read-only disk."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import platformdirs


def directory(name: str) -> Path:
    """Directory of one kind of files; `keep` creates it."""
    return _root() / name


def made(name: str) -> Path:
    """The same, made if it is not there."""
    return _made(directory(name))


def keep(place: Path, content: bytes | memoryview) -> None:
    """Write a file atomically. A full or read-only disk only makes the next time slower."""
    with suppress(OSError):
        partial = _made(place.parent) / f".{uuid4().hex}"
        try:
            partial.write_bytes(content)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)


def _made(place: Path) -> Path:
    _root().mkdir(mode=0o700, parents=True, exist_ok=True)  # results are kept here
    place.mkdir(parents=True, exist_ok=True)
    return place


def _root() -> Path:
    return Path(platformdirs.user_cache_dir("mlflow-ngraph"))
