"""Export studies into one file from which they can be recorded and recomputed anywhere."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pydantic import ValidationError

from mlflow_ngraph.engines import signing
from mlflow_ngraph.engines.files import damage, digest_files, sha256
from mlflow_ngraph.errors import ArchiveError, UsageError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.processes import disk_space
from mlflow_ngraph.tracking import files
from mlflow_ngraph.validation import explain
from mlflow_ngraph.version import __version__
from mlflow_ngraph_archives import contents
from mlflow_ngraph_archives.contents import ArchivedFile, ArchivedStudy, Contents

if TYPE_CHECKING:
    from _typeshed import SupportsRead
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Exported:
    """A written archive."""

    path: Path
    size_bytes: int
    studies: tuple[ArchivedStudy, ...]
    lacking: Mapping[str, str]
    """Reasons for missing engines, by id: the files are gone or have changed."""
    signed_by: str | None
    """Fingerprint of the key."""


@dataclass(frozen=True)
class _Source:
    """A study with the places of its files."""

    study: ArchivedStudy
    files: Mapping[str, Path]
    lacking: Mapping[str, str]


def export(
    directories: Sequence[Path],
    target: Path,
    *,
    key: Ed25519PrivateKey | None = None,
    replace: bool = False,
    on_wait: Callable[[Path], None] = lambda directory: None,
) -> Exported:
    """Write studies into an archive. Equal studies give equal archives, bit for bit.

    ``key`` signs it, and ``replace`` overwrites an existing file, but no link, pipe or device. ``on_wait`` is called
    before waiting for a process that runs or records one of the studies. Raises `UsageError` if there is a file already
    or it cannot be written there, `ArchiveError` if a file has changed while it was read or a study is given twice,
    `JournalError` if there is no study in a directory or its journal is damaged, and `DiskFullError` if there is no room
    for it.
    """
    if target.exists() and not replace:
        raise UsageError(f"{target} is there already: choose another name, or add --force")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise UsageError(f"{target} is no plain file: choose another name")
    places = [directory.resolve() for directory in directories]
    if len(set(places)) != len(places):
        raise ArchiveError(f"study {max(places, key=places.count).name} is given twice")
    partial = target.with_name(f".{target.name}.partial")
    with ExitStack() as stack:
        try:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ngraph-export-")))
            sources = []
            for number, directory in enumerate(directories):
                journal.first(directory)  # refuses a directory without a study before writing to it
                wait = lambda directory=directory: on_wait(directory)  # noqa: E731 - of this directory
                stack.enter_context(Journal(directory, on_wait=wait))
                derived = temporary / str(number)
                derived.mkdir()
                sources.append(_source(directory, derived))
            names = [source.study.study_id for source in sources]
            if len(set(names)) != len(names):
                raise ArchiveError(f"study {max(names, key=names.count)} is given twice")
            stack.callback(partial.unlink, missing_ok=True)
            by = _write(sources, partial, key)
            size = partial.stat().st_size
            partial.replace(target)
        except OSError as error:
            if disk_space.is_lacking(error):
                raise disk_space.lacking(f"writing {target}", directories[0]) from error
            raise UsageError(f"cannot write {target}: {error.strerror or error}; choose another place") from None
    lacking = {engine: why for source in sources for engine, why in source.lacking.items()}
    return Exported(target, size, tuple(source.study for source in sources), lacking, by)


def _source(directory: Path, derived: Path) -> _Source:
    """Collect the files of a study. Tables are derived into the folder ``derived``."""
    record = replay.load(directory)
    files.write(record, directory, derived, None, {}, {})
    places = {path.name: path for path in sorted(derived.iterdir())} | {
        journal.FILE_NAME: directory / journal.FILE_NAME
    }
    lacking, engines = {}, dict[str, str]()
    for engine in (engine for lane in record.lanes.values() for engine in lane.engines):
        problem = damage(directory / engine.directory, engine.files)
        if problem:
            lacking[engine.id] = problem
            continue
        for path, digest in engine.files.items():
            places[f"{engine.directory}/{path}"] = directory / engine.directory / path
            engines[f"{engine.directory}/{path}"] = digest
    kept = directory / contents.DISAGREEMENTS
    places |= {f"{contents.DISAGREEMENTS}{path}": kept / path for path in digest_files(kept)} if kept.is_dir() else {}
    listed = {
        path: ArchivedFile(sha256=engines.get(path) or sha256(place), size=place.stat().st_size)
        for path, place in places.items()
    }
    about = {"study_id": record.id, "name": record.name, "device": record.device, "started_at": record.started_at}
    try:
        study = ArchivedStudy.model_validate({**about, "files": listed})
    except ValidationError as error:
        raise ArchiveError(f"{directory} cannot be exported: {explain(error, ArchivedStudy)}") from None
    return _Source(study, places, lacking)


def _write(sources: Sequence[_Source], partial: Path, key: Ed25519PrivateKey | None) -> str | None:
    """Write the archive, and return the fingerprint of the key."""
    table = Contents(package=__version__, studies=tuple(source.study for source in sources))
    content, by = table.to_json(), None
    if len(content) > contents.MAX_BYTES:
        raise ArchiveError("these studies have too many files for one archive: export fewer of them at once")
    places = {(source.study.study_id, path): place for source in sources for path, place in source.files.items()}
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600, exist_ok=False)  # no link; whoever it is meant for gets it from its owner
    with partial.open("wb") as stream:
        with tarfile.open(
            fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="strict"
        ) as tar:
            _add(tar, contents.FILE, len(content), io.BytesIO(content))
            if key is not None:
                signature = signing.sign(content, key)
                _add(tar, contents.SIGNATURE_FILE, len(signature), io.BytesIO(signature))
                by = signing.fingerprint(signing.public_blob(signing.public_text(key)))
            for study, path, file in table.members():
                place = places[study.study_id, path]
                with place.open("rb") as source:
                    hashed = _Hashed(source)
                    _add(tar, f"{study.study_id}/{path}", file.size, hashed)
                if hashed.digest.hexdigest() != file.sha256:
                    raise ArchiveError(f"{place} has changed while it was exported")
        stream.flush()
        # The originals may be deleted once the archive is carried elsewhere.
        os.fsync(stream.fileno())
    return by


def _add(tar: tarfile.TarFile, name: str, size: int, content: SupportsRead[bytes]) -> None:
    try:
        tar.addfile(contents.member(name, size), content)
    except UnicodeEncodeError:
        raise ArchiveError(f"the file name {name!r} cannot be written into an archive") from None


class _Hashed:
    """File that is hashed while it is read. One that has become shorter ends in zeros, and so has another digest."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self.digest.update(piece)
        return piece.ljust(size, b"\0")
