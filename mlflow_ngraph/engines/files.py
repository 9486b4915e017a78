"""Digests of files: what makes an engine on disk the one that was measured."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """The sha256 of a file, as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_files(directory: Path) -> dict[str, str]:
    """sha256 of every file below ``directory``, by relative path with forward slashes, sorted."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256(path) for path in files}
