"""Import studies from an archive, after all of it has been checked.

An archive may be malicious. Its files are compared with its table of contents, lines of journals with their checks, and
engines, samples, verdicts and the machine with the journal. What else follows from the journal is derived here, not taken
from the archive. Nothing of it is loaded or executed, and what was imported is marked: no study of this machine goes on
with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Literal

import pandas as pd
import pyarrow as pa
from pyarrow import parquet as pq

from mlflow_ngraph import documents
from mlflow_ngraph import home as home_directory
from mlflow_ngraph.engines import signing
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.files import is_plain
from mlflow_ngraph.engines.trust import Rules, Trusted
from mlflow_ngraph.errors import ArchiveError, JournalError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.processes import disk_space
from mlflow_ngraph.tables import results, samples
from mlflow_ngraph.tracking import files
from mlflow_ngraph.tracking.schema import Artifact
from mlflow_ngraph_archives import contents
from mlflow_ngraph_archives.contents import ArchivedFile, ArchivedStudy, Contents

State = Literal["imported", "continued", "unchanged"]
"""Result for a study: new, extended (the local journal was its beginning), or already present."""

_CHUNK = 1 << 20
_LONGEST_LINE = 256 << 20
"""Largest line of a journal in bytes."""
_LARGEST_TABLE = 1 << 30
"""Bytes of a file that is compared with the journal."""
_COMPARED = (Artifact.RESULTS, Artifact.SAMPLES, Artifact.FINGERPRINT)
_OF_RECORDING = ("record_opened", "lane_opened", "lane_recorded", "recording_failed", "study_recorded")
"""Events that do not concern measurements."""


@dataclass(frozen=True)
class Archive:
    """A checked archive."""

    path: Path
    contents: Contents
    digest: str
    """sha256 of the table of contents, which covers the whole archive."""
    trusted: Trusted


@dataclass(frozen=True)
class Imported:
    """An imported study."""

    study: ArchivedStudy
    directory: Path
    state: State


def check(path: Path, rules: Rules) -> Archive:
    """Verify every byte of an archive. Writes nothing.

    Raises `ArchiveError` if it cannot be read, is none, has changed, or a newer version wrote it, and `EngineError` if
    the rules do not let it in.
    """
    where = str(path)
    try:
        with path.open("rb") as stream:
            reader = _Reader(stream, where)
            content, signature, table = _opened(reader, where)
            trusted = trusting.require(content, signature, path, rules)
            for study, name, file in table.members():
                pieces = _verified(reader, study, name, file, where)
                at = f"{where}: {study.study_id}/{name}"
                if name == journal.FILE_NAME:
                    record = _check_study(study, pieces, at)
                elif name in _COMPARED and not _follows(record, name, file, pieces):
                    raise ArchiveError(f"{at} does not follow from {journal.FILE_NAME}: one of them was changed or cut")
                for _ in pieces:
                    pass
            reader.end()
    except OSError as error:
        raise ArchiveError(f"cannot read the archive {where}: {error.strerror or error}") from None
    return Archive(path, table, hashlib.sha256(content).hexdigest(), trusted)


def unpack(archive: Archive, studies: Path, on_wait: Callable[[Path], None] = lambda directory: None) -> list[Imported]:
    """Extract the studies of an archive. Repeating it changes nothing.

    ``studies`` is the folder of all studies. ``on_wait`` is called before waiting for a process that runs or records
    one of them. Raises `ArchiveError` if it has changed since it was checked, or a study is here that went on in
    another way, and `DiskFullError` if there is no room for it.
    """
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".import-", dir=studies))
        try:
            _extract(archive, temporary)
            return [
                _place(archive, study, temporary / study.study_id, studies / study.study_id, on_wait)
                for study in archive.contents.studies
            ]
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if disk_space.is_lacking(error):
            raise disk_space.lacking(f"unpacking {archive.path}", studies) from error
        raise ArchiveError(f"cannot unpack {archive.path} into {studies}: {error.strerror or error}") from None


class _Reader:
    """Reader of a tar file that must have given files, byte for byte.

    Comparing headers instead of interpreting them leaves no room for links, second names or wrong sizes.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream = stream
        self._where = where

    def file(self, name: str, size: int) -> Iterator[bytes]:
        """Pieces of the next file, which must be this one."""
        expected = contents.member(name, size).tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
        if self._take(len(expected)) != expected:
            raise ArchiveError(f"{self._where}: has changed, or was not written by mlflow-ngraph, before {name!r}")
        for start in range(0, size, _CHUNK):
            yield self._take(min(size - start, _CHUNK))
        if any(self._take(-size % tarfile.BLOCKSIZE)):
            raise ArchiveError(f"{self._where}: has changed behind {name!r}")

    def small(self, name: str, limit: int) -> bytes | None:
        """Content of the next file if it has this name, else None. Its size in bytes is limited."""
        start = self._stream.tell()
        try:
            entry = tarfile.TarInfo.frombuf(self._take(tarfile.BLOCKSIZE), "utf-8", "replace")
        except tarfile.HeaderError:
            return None
        finally:
            self._stream.seek(start)
        if entry.name != name:
            return None
        if not 0 <= entry.size <= limit:
            raise ArchiveError(f"{self._where}: {name} has {entry.size} bytes, and may have {limit}")
        return b"".join(self.file(name, entry.size))

    def end(self) -> None:
        """Check the end of the archive: nothing but zeros, as many as belong there."""
        size = 2 * tarfile.BLOCKSIZE
        size += -(self._stream.tell() + size) % tarfile.RECORDSIZE
        if any(self._take(size)) or self._stream.read(1):
            raise ArchiveError(
                f"{self._where}: has something behind its last file that was not written by mlflow-ngraph"
            )

    def _take(self, size: int) -> bytes:
        content = self._stream.read(size)
        if len(content) != size:
            raise ArchiveError(f"{self._where}: is cut off, after {self._stream.tell()} bytes")
        return content


def _opened(reader: _Reader, where: str) -> tuple[bytes, bytes | None, Contents]:
    content = reader.small(contents.FILE, contents.MAX_BYTES)
    if content is None:
        raise ArchiveError(
            f"{where}: is no archive of studies as 'mlflow-ngraph study export' writes it; one that was packed anew is none"
        )
    table = Contents.parse(content, where)
    return content, reader.small(contents.SIGNATURE_FILE, signing.MAX_BYTES), table


def _verified(reader: _Reader, study: ArchivedStudy, name: str, file: ArchivedFile, where: str) -> Iterator[bytes]:
    """Pieces of a file. Its digest is compared after the last one."""
    digest = hashlib.sha256()
    for piece in reader.file(f"{study.study_id}/{name}", file.size):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != file.sha256:
        raise ArchiveError(f"{where}: {study.study_id}/{name} has changed since it was exported")


def _check_study(study: ArchivedStudy, pieces: Iterable[bytes], where: str) -> StudyRecord:
    """Check the journal's study, and compare engines with the journal's digests."""
    try:
        record = replay.fold(journal.parsed(_lines(pieces, where), where))
    except JournalError as error:
        raise ArchiveError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    if record.id != study.study_id:
        raise ArchiveError(f"{where}: is the journal of another study: {record.id[:80]!r}")
    expected = _engine_files(record, where)
    for path, file in study.files.items():
        if path.startswith(contents.ENGINES) and expected.get(path) != file.sha256:
            raise ArchiveError(f"{where}: does not speak of {path[:80]!r}, or of another file there")
    return record


def _follows(record: StudyRecord, name: str, file: ArchivedFile, pieces: Iterable[bytes]) -> bool:
    """Compare what was measured: figures that another version derived from it may differ."""
    if file.size > _LARGEST_TABLE:
        return False
    content = b"".join(pieces)
    try:
        if name == Artifact.FINGERPRINT:
            return bool(documents.from_json(content) == record.fingerprint)
        table = results.from_record(record) if name == Artifact.RESULTS else samples.from_record(record)
        stored, again = (_table(parquet, len(table)) for parquet in (content, table.to_parquet(index=False)))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return False
    shared = ["cell", "verdict"] if name == Artifact.RESULTS else [column for column in stored if column in again]
    return set(shared) <= set(stored) and bool(shared) and stored[shared].equals(again[shared])


def _table(content: bytes, rows: int) -> pd.DataFrame:
    """Read a table of so many rows by its columns alone: what else a file tells pandas may be anything."""
    file = pq.ParquetFile(BytesIO(content))
    if file.metadata.num_rows != rows:
        raise ValueError("it has other rows")
    table: pd.DataFrame = file.read().to_pandas(ignore_metadata=True)
    return table


def _engine_files(record: StudyRecord, where: str) -> dict[str, str]:
    digests: dict[str, str] = {}
    for lane in record.lanes.values():
        for engine in lane.engines:
            paths = [f"{engine.directory}/{path}" for path in engine.files]
            if not all(is_plain(path) and path.startswith(contents.ENGINES) for path in (engine.directory, *paths)):
                raise ArchiveError(f"{where}: has an engine that does not lie in the directory of the study")
            digests.update(zip(paths, engine.files.values(), strict=True))
    return digests


def _lines(pieces: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Split pieces into lines. A remainder without a newline is a line that no journal has."""
    begun = b""
    for piece in pieces:
        *lines, begun = (begun + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(begun) > _LONGEST_LINE:
            raise ArchiveError(f"{where}: has a line that no study writes")
    if begun:
        yield begun


def _extract(archive: Archive, target: Path) -> None:
    """Extract the files of study directories, comparing them again: the archive may have changed since."""
    where = str(archive.path)
    with archive.path.open("rb") as stream:
        reader = _Reader(stream, where)
        content, _, _ = _opened(reader, where)
        if hashlib.sha256(content).hexdigest() != archive.digest:
            raise ArchiveError(f"{where}: has changed since it was checked")
        for study, name, file in archive.contents.members():
            pieces = _verified(reader, study, name, file, where)
            if study.is_extracted(name):
                place = target / study.study_id / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as output:
                    output.writelines(pieces)
                    output.flush()
                    os.fsync(output.fileno())
            else:
                for _ in pieces:
                    pass
        reader.end()


def _place(
    archive: Archive, study: ArchivedStudy, source: Path, place: Path, on_wait: Callable[[Path], None]
) -> Imported:
    """Move a study to its place, unless it is there already."""
    files.write_study(replay.load(source), source)
    whose = f"{archive.path.resolve()}: {archive.trusted.found}"
    (source / home_directory.IMPORTED_FROM).write_text(whose, encoding="utf-8")
    with suppress(OSError):
        source.rename(place)  # onto nothing, or an empty directory
        return Imported(study, place, "imported")
    with Journal(place, on_wait=lambda: on_wait(place)):
        here, there = (list(journal.read(directory)) for directory in (place, source))
        common = next(
            (number for number, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]),
            min(len(here), len(there)),
        )
        if _only_recording(there[common:]):
            return Imported(study, place, "unchanged")
        if not _only_recording(here[common:]):
            raise ArchiveError(
                f"study {study.study_id} went on in another way here than in the archive, from line {common + 1} of its journal on: "
                "import it with another --home"
            )
        _keep_engines(study, here, there)
        _add(source, place)
    return Imported(study, place, "continued")


def _keep_engines(study: ArchivedStudy, here: Sequence[journal.Event], there: Sequence[journal.Event]) -> None:
    """Refuse a continuation that puts other files in place of an engine that is here."""
    engines, others = (
        {engine.directory: engine.files for lane in replay.fold(events).lanes.values() for engine in lane.engines}
        for events in (here, there)
    )
    changed = next((path for path, digests in engines.items() if others.get(path, digests) != digests), None)
    if changed:
        raise ArchiveError(
            f"study {study.study_id} has other files in {changed} in the archive than here: import it with another --home"
        )


def _add(source: Path, place: Path) -> None:
    """Add files to a study. Those that are there stay, except for the journal, the last one, and whose study it is."""
    replaced = (home_directory.IMPORTED_FROM, journal.FILE_NAME)
    paths = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: str(path) == journal.FILE_NAME):
        if str(path) in replaced or not (place / path).exists():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).replace(place / path)


def _only_recording(events: Iterable[journal.Event]) -> bool:
    return all(event["event"] in _OF_RECORDING for event in events)
