"""Engines kept on this machine by their key, so that no study compiles what another one has compiled.

``<home>/engines/<key>/`` has ``engine/``, the files as the compiler wrote them, and ``record.json`` with its digest. Files are hard
links to those of the study that compiled them, where the file system has such: they cost no space as long as that
study is kept, and taking an entry away leaves the studies that use it whole. An entry is made beside its place and
renamed into it, so that there is never half of one, whoever else is doing the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from mlflow_ngraph import documents, formats
from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.engines.files import damage, digest_files, escapes, is_long, is_plain, link_files, strange
from mlflow_ngraph.errors import EngineError

RECORD = "record.json"
SCHEMA_VERSION = 1
RECORD_DIGEST = "record.json.sha256"
"""Has the digest of the record, as ``sha256sum`` writes it."""
FILES = "engine"
_TEMPORARY = ".partial-"
_ABANDONED_S = 86400.0
"""Age of a temporary directory from which on whoever made it is taken for dead."""


class FrozenModel(BaseModel):
    """A piece of what is written beside an engine: nothing unknown in it, and never changed."""

    # JSON has no NaN and no infinity; as text they are read back as what they were.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings")


Stages = dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
"""Seconds of a compilation, by what was done."""
BatchSize = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
Bytes = Annotated[int, Field(ge=0, strict=True)]


class EngineOrigin(FrozenModel):
    """Who really compiled an engine that others use."""

    study: str
    study_id: str
    lane_id: str
    engine_id: str
    compiled_at: float
    """Unix seconds."""
    machine: str
    """Digest of the machine's hardware."""
    tracking_uri: str | None = None
    """The tracking server that the engine was pulled from, without credentials; None where it never left."""
    model_id: str | None = None
    run_id: str | None = None


class StoredEngine(FrozenModel):
    """The content of ``record.json``."""

    schema_version: Literal[1] = 1
    key: str
    workload: str
    label: str
    compiler: str
    precision: str
    batch_sizes: tuple[BatchSize, ...] = Field(min_length=1)
    stages: Stages
    """Seconds of the original compilation."""
    built_beside: int = Field(ge=0)
    """The most others that were prepared or compiled beside it."""
    flags: dict[str, FlagValue]
    """Values that took effect at compile time."""
    requires: dict[str, str]
    files: dict[str, str]
    """sha256 by path."""
    size_bytes: Bytes
    origin: EngineOrigin

    def serves(self, requires: Mapping[str, str]) -> str:
        """What keeps the engine from serving a machine that has ``requires``; empty when nothing does.

        An engine may ask for more, which only the runtime can check when it loads it.
        """
        for name, present in requires.items():
            needed = self.requires.get(name)
            if needed != present:
                return f"it needs {name} {needed or 'unknown'}, here is {present or 'none'}"
        return ""


class EngineStore:
    """The engines below one directory. Any number of processes may use it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, key: str) -> StoredEngine | None:
        """The engine with this key, once its files have proved to be what was compiled. Counts as a use.

        Raises
        ------
        EngineError
            There is one, and it is damaged; the caller may `remove` it.
        """
        directory = self.root / key
        if not os.path.lexists(directory):
            return None
        if what := strange(directory):
            raise EngineError(f"{what}: an engine has files of its own")
        stored = self._read(directory)
        if stored.key != key:
            raise EngineError(f"{directory} says that it is {stored.key}")
        engine, more = directory / FILES, EngineError(f"{directory} holds files that nobody compiled")
        if {path.name for path in directory.iterdir()} != {FILES, RECORD, RECORD_DIGEST}:
            raise more
        if digest_files(engine) != stored.files:
            raise EngineError(problem) if (problem := damage(engine, stored.files)) else more
        size = sum((engine / path).stat().st_size for path in stored.files)
        if size != stored.size_bytes:
            raise EngineError(f"{engine} has {size} bytes, and its record says {stored.size_bytes}")
        with suppress(OSError):
            os.utime(directory / RECORD)
        return stored

    def place(self, engine: StoredEngine, target: Path) -> None:
        """Put the files of an engine that `find` returned into the new directory ``target``, whole or not at all.

        Raises
        ------
        OSError
            The entry was taken away meanwhile, or there is no room.
        """
        partial = target.with_name(f"{target.name}.partial")
        for left_over in (partial, target):
            shutil.rmtree(left_over, ignore_errors=True)
        link_files(self.root / engine.key / FILES, partial, engine.files)
        partial.rename(target)

    def add(self, engine: StoredEngine, source: Path) -> None:
        """Keep an engine whose files lie in ``source``. Does nothing where it is kept already.

        Raises
        ------
        OSError
            The store cannot be written.
        """
        if (self.root / engine.key / RECORD).is_file():
            return
        with self.staging() as directory:
            link_files(source, directory / FILES, engine.files)
            self.publish(engine, directory)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory in which an entry is put together; gone afterwards, unless it was published."""
        self._sweep()
        directory = self._temporary()
        directory.mkdir(parents=True)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, engine: StoredEngine, directory: Path) -> None:
        """Turn a directory of `staging`, which has the files of ``engine`` in ``engine/``, into an entry.

        Raises
        ------
        EngineError
            A path of the engine leads out of its directory.
        OSError
            The store cannot be written.
        """
        for path in engine.files:
            if escapes(path):
                raise EngineError(f"an engine has the file {path!r}, which is outside its directory")
        content = engine.model_dump_json(indent=1).encode() + b"\n"
        (directory / RECORD).write_bytes(content)
        (directory / RECORD_DIGEST).write_text(f"{hashlib.sha256(content).hexdigest()}  {RECORD}\n", encoding="ascii")
        try:
            directory.rename(self.root / engine.key)
        except OSError:
            # Directories are only renamed onto empty ones: another process has published the same engine.
            if not (self.root / engine.key / RECORD).is_file():
                raise

    def remove(self, key: str) -> None:
        """Forget an engine. Studies that use it keep it."""
        gone = self._temporary()
        with suppress(FileNotFoundError):
            (self.root / key).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def entries(self) -> list[StoredEngine]:
        """All engines, as their records say; entries without a readable record are left out."""
        engines = []
        for path in sorted(self.root.glob(f"*/{RECORD}")):
            with suppress(EngineError):
                engines.append(self._read(path.parent))
        return engines

    def used_at(self, key: str) -> float:
        """When an engine was last found, or kept; Unix seconds. 0 where it is gone."""
        try:
            return (self.root / key / RECORD).stat().st_mtime
        except OSError:
            return 0.0

    def freed_bytes(self, engine: StoredEngine) -> int:
        """What taking an entry away gives back: the files that no study shares."""
        total = 0
        for path in engine.files:
            with suppress(OSError):
                status = (self.root / engine.key / FILES / path).stat()
                total += status.st_size if status.st_nlink == 1 else 0
        return total

    def _temporary(self) -> Path:
        return self.root / f"{_TEMPORARY}{uuid4().hex}"

    def _read(self, directory: Path) -> StoredEngine:
        path = directory / RECORD
        try:
            content, digest = (documents.content(directory / name) for name in (RECORD, RECORD_DIGEST))
        except OSError as error:
            raise EngineError(f"{path} is not readable: {error}") from None
        if digest != f"{hashlib.sha256(content).hexdigest()}  {RECORD}\n".encode():
            raise EngineError(f"{path} has changed since it was written")
        try:
            said = documents.from_json(content)
            stored = StoredEngine.model_validate_json(content)
            if not all(is_plain(name) and not is_long(name) for name in stored.files):
                raise ValueError("a file leads out of the entry")
            if other := formats.foreign(said.get("schema_version"), SCHEMA_VERSION):
                raise EngineError(f"{path} {other}")
            return stored
        except (ValueError, RecursionError):
            raise EngineError(f"{path} is not readable: not the record of an engine") from None

    def _sweep(self) -> None:
        """Take away what killed processes left behind."""
        for path in self.root.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)
