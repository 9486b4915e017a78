"""Inventory of studies, logs and engines on this disk: sizes, ages, reasons to keep them, and their deletion."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import journal, study_directories

What = Literal["studies", "logs", "scratch", "cache", "pulled"]
"""Whole studies; logs; files that a resumed study makes again; shared engines; pulled engines."""

_SCRATCH = ("materials", "scratch")
"""Subdirectories of a study."""
_ABANDONED_S = 86400.0
"""Age from which a temporary directory counts as abandoned."""


@dataclass(frozen=True)
class StoredItem:
    """A set of files that can be deleted together."""

    what: What
    name: str
    paths: tuple[Path, ...]
    used_at: float
    """Unix seconds of the last use."""
    study: Path | None = None
    """The study that it belongs to, which must be idle when it is deleted."""
    stays: str = ""
    """Reason why it is deleted only by name; empty when nothing is lost."""

    @property
    def size_bytes(self) -> int:
        """Size of its files, including those with other hard links."""
        return sum(status[1] for status in _files(self.paths).values())

    @property
    def age_s(self) -> float:
        """Seconds since its last use."""
        return max(0.0, time.time() - self.used_at)


def stored_items(home: Path) -> list[StoredItem]:
    """All items below a directory, longest unused first; see `mlflow_ngraph.home.location`."""
    found = [*_of_studies(home / "studies"), *_cached(home_directory.engine_store(home))]
    found += [
        StoredItem("pulled", path.name, (path,), _changed(path))
        for path in _children(home_directory.pulled_engines(home))
        if path.is_dir()
    ]
    return sorted(found, key=lambda item: item.used_at)


def freed_bytes(chosen: Iterable[StoredItem]) -> int:
    """Bytes freed by deleting items: files without links elsewhere."""
    names: Counter[tuple[int, int]] = Counter()
    known: dict[tuple[int, int], tuple[int, int]] = {}
    for item in chosen:
        for file, (count, size, links) in _files(item.paths).items():
            names[file] += count
            known[file] = size, links
    return sum(size for file, (size, links) in known.items() if names[file] >= links)


def remove(item: StoredItem) -> None:
    """Delete an item. An interrupted deletion leaves a hidden directory, which the next inventory lists.

    Raises `JournalError` if its study is running or being recorded.
    """
    with ExitStack() as stack:
        if item.study is not None:
            stack.enter_context(journal.held(item.study))
        for path in item.paths:
            if path.exists():
                gone = path.with_name(f".gone-{uuid4().hex}")
                path.rename(gone)
                shutil.rmtree(gone)


def _of_studies(studies: Path) -> Iterator[StoredItem]:
    for path in _children(studies):
        if path.name.startswith("."):
            if path.name.startswith(".gone-") or time.time() - _changed(path) > _ABANDONED_S:
                yield StoredItem("scratch", path.name, (path,), _changed(path))
        elif (path / journal.FILE_NAME).is_file():
            used = _changed(path / journal.FILE_NAME)
            yield StoredItem("studies", path.name, (path,), used, path, _why_it_stays(path))
            if (path / "logs").is_dir():
                yield StoredItem("logs", path.name, (path / "logs",), used, path)
            scratch = tuple(path / name for name in _SCRATCH if (path / name).is_dir())
            if scratch:
                yield StoredItem("scratch", path.name, scratch, used, path)


def _why_it_stays(study: Path) -> str:
    try:
        if study_directories.end(study) == "open":
            return "it did not come to its end"
        return "" if study_directories.recorded_as(study) else "it is not recorded"
    except JournalError:
        return "its journal is damaged"


def _cached(root: Path) -> Iterator[StoredItem]:
    store = EngineStore(root)
    for engine in store.entries():
        spec, key = engine.spec, engine.compiled.key
        name = f"{engine.origin.label} {spec.compiler} {spec.target.precision} {key[:12]}"
        yield StoredItem("cache", name, (root / key,), store.used_at(key))


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _files(paths: Iterable[Path]) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Each file once: its links among the paths, its size, and all its links."""
    files: dict[tuple[int, int], tuple[int, int, int]] = {}
    for root in paths:
        for path in root.rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                if path.is_symlink() or path.is_file():
                    key = status.st_dev, status.st_ino
                    count = files.get(key, (0, 0, 0))[0]
                    files[key] = count + 1, status.st_size, status.st_nlink
    return files
