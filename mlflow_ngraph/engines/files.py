"""Files of engines: digests and damage, checks of paths, links and permissions, hard links, and removal."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from mlflow_ngraph.text import harmless
from mlflow_ngraph.workloads.file import linked

_CHUNK = 1 << 20
_LONGEST_PATH, _LONGEST_NAME = 1024, 255
"""Characters of a path, and bytes of a name in it."""
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READ_ONLY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_files(directory: Path) -> dict[str, str]:
    """sha256 of every file below ``directory``, by relative path with forward slashes, sorted."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256(path) for path in files}


def damage(directory: Path, files: Mapping[str, str]) -> str:
    """First damage to files of an engine or package with these sha256 by relative path; empty when there is none."""
    for path, digest in sorted(files.items()):
        file = directory / path
        inside = PurePosixPath(path)
        if any((directory / part).is_symlink() for part in (inside, *inside.parents[:-1])):
            return f"{file} is a link, which could lead anywhere"
        if not file.is_file():
            return f"{file} is missing"
        if sha256(file) != digest:
            return f"{file} has changed since it was written"
    return ""


def irregular_entry(directory: Path) -> str:
    """First entry of a directory that is neither file nor directory, such as a link, which could lead anywhere."""
    for path in sorted([directory, *directory.rglob("*")]):
        if path.is_symlink():
            return f"{harmless(str(path))} is a link"
        if not (path.is_file() or path.is_dir()):
            return f"{harmless(str(path))} is no file"
    return ""


def exposed(path: Path) -> str:
    """How other users could change an entry of a directory; empty when only this user and root can."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{harmless(str(path))} is a link"
    if status.st_uid not in (os.geteuid(), 0):
        return f"{harmless(str(path))} belongs to another user"
    return f"{harmless(str(path))} may be written by other users" if status.st_mode & _WRITTEN_BY_OTHERS else ""


def escapes(path: str) -> bool:
    """True if an untrusted relative path leads out of its directory."""
    parts = PurePosixPath(path).parts
    return not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path


def is_plain(path: str) -> bool:
    """True if an untrusted relative path is normalised, printable, and stays below its directory.

    A second spelling could name a file that is already checked.
    """
    return (
        not escapes(path)
        and all(part not in ("", ".") for part in path.split("/"))
        and harmless(path) == path
        and path.isprintable()
    )


def is_long(path: str) -> bool:
    """True if a path exceeds the limits of file systems."""
    return len(path) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in path.split("/"))


def remove_files(directory: Path, chosen: Callable[[str], bool]) -> None:
    """Remove files chosen by their relative path, links among them, and empty directories; nothing behind a link."""
    for place, _, _, handle in os.fwalk(directory, topdown=False):
        for entry in list(os.scandir(handle)):
            if entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # not empty
                    os.rmdir(entry.name, dir_fd=handle)
            elif chosen(Path(place, entry.name).relative_to(directory).as_posix()):
                os.unlink(entry.name, dir_fd=handle)


def close_to_others(directory: Path) -> None:
    """Take write permission from other users, whatever the umask was when the directory was filled."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(path.stat().st_mode & ~_WRITTEN_BY_OTHERS)


def link_files(source: Path, target: Path, paths: Iterable[str]) -> None:
    """Hard-link files below ``target``, or copy them where the file system cannot, and make them read-only.

    The names share one content: writing to one would change the other.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in paths:
        file, name = source / path, target / path
        name.parent.mkdir(parents=True, exist_ok=True)
        linked(file, name)
        name.chmod(_READ_ONLY)
