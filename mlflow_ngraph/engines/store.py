"""EngineStore: directory of compiled engines on this machine by key; finds, checks, adds, places and removes them.

``<home>/engines/<key>/`` is a package without figures: ``engine/``, the compiler's files, and its manifest. Files are
hard links to those of the study that compiled them, where the file system has such: they cost no space as long as that
study is kept, and removing an entry does not harm the studies that use it. An entry is staged and renamed, so that
concurrent processes never see half of one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from mlflow_ngraph.engines.files import close_to_others, exposed, irregular_entry, link_files
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, FILE, Manifest
from mlflow_ngraph.engines.package import open_package, read_manifest, write_manifest
from mlflow_ngraph.errors import EngineError

_TEMPORARY = ".partial-"
_ABANDONED_S = 86400.0
"""Age of a temporary directory from which on whoever made it is taken for dead."""


class EngineStore:
    """Engines below one directory. Safe for concurrent processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, key: str) -> Manifest | None:
        """Engine with this key, after its files have been checked. Counts as a use.

        Raises `EngineError` if it is damaged; the caller may `remove` it.
        """
        directory = self.root / key
        if not os.path.lexists(directory):
            return None
        if what := irregular_entry(directory):
            raise EngineError(f"{what}: an engine has files of its own")
        if problem := next(filter(None, map(exposed, [directory, *directory.rglob("*")])), ""):
            raise EngineError(f"{problem}: only engines that nobody else can change are used")
        manifest = open_package(directory).manifest
        if manifest.compiled.key != key:
            raise EngineError(f"{directory} says that it is {manifest.compiled.key}")
        with suppress(OSError):
            os.utime(directory / FILE)
        return manifest

    def place(self, engine: Manifest, target: Path) -> None:
        """Copy the files of a found engine into the new directory ``target``, atomically.

        Raises `OSError` if the entry was removed meanwhile, or the disk is full.
        """
        partial = target.with_name(f"{target.name}.partial")
        for left_over in (partial, target):
            shutil.rmtree(left_over, ignore_errors=True)
        link_files(self.root / engine.compiled.key / ENGINE_DIRECTORY, partial, engine.engine_files())
        partial.rename(target)

    def add(self, engine: Manifest, source: Path) -> None:
        """Store the engine in ``source``, unless it is there already. Raises `OSError` if the store is not writable."""
        if (self.root / engine.compiled.key / FILE).is_file():
            return
        with self.staging() as directory:
            link_files(source, directory / ENGINE_DIRECTORY, engine.engine_files())
            self.publish(engine, directory)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Temporary directory in which an entry is assembled until it is published."""
        self._sweep()
        directory = self._temporary()
        directory.mkdir(parents=True, mode=0o700)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, engine: Manifest, directory: Path) -> None:
        """Turn a directory of `staging`, with the files of ``engine`` in ``engine/``, into an entry.

        Raises `OSError` if the store is not writable.
        """
        write_manifest(directory, engine)
        close_to_others(directory)
        try:
            directory.rename(self.root / engine.compiled.key)
        except OSError:
            # Directories are only renamed onto empty ones: another process has published the same engine.
            if not (self.root / engine.compiled.key / FILE).is_file():
                raise

    def remove(self, key: str) -> None:
        """Remove an engine. Studies that use it keep it."""
        gone = self._temporary()
        with suppress(FileNotFoundError):
            (self.root / key).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def entries(self) -> list[Manifest]:
        """Manifests of all engines; entries without a readable one are left out."""
        engines = []
        for path in sorted(self.root.glob(f"*/{FILE}")):
            with suppress(EngineError):
                engines.append(read_manifest(path.parent).manifest)
        return engines

    def used_at(self, key: str) -> float:
        """Time of last use in Unix seconds; 0 for a removed engine."""
        try:
            return (self.root / key / FILE).stat().st_mtime
        except OSError:
            return 0.0

    def freed_bytes(self, engine: Manifest) -> int:
        """Bytes that removing an entry frees: the files that no study shares."""
        total = 0
        for path in engine.engine_files():
            with suppress(OSError):
                status = (self.root / engine.compiled.key / ENGINE_DIRECTORY / path).stat()
                total += status.st_size if status.st_nlink == 1 else 0
        return total

    def _temporary(self) -> Path:
        return self.root / f"{_TEMPORARY}{uuid4().hex}"

    def _sweep(self) -> None:
        """Remove staging directories of killed processes."""
        for path in self.root.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
