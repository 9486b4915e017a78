"""Journal: the append-only event log of a study, with chained digests; locked appending and checked reading.

One JSON object a line, each on disk before anything else uses it. Metrics, tables and runs in MLflow are derived from
these lines.

Every line ends with a digest of itself and of the digest before it, so that changed, lost, moved or inserted lines are
detected. An incomplete last line, left by a kill, is dropped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from mlflow_ngraph import formats
from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.processes import disk_space, interruption

SCHEMA_VERSION = 1
FILE_NAME = "journal.jsonl"
_LOCK = "journal.lock"
_CHECK = ',"check":"{}"}}\n'
"""End of a line."""
_CHECK_CHARACTERS = 32
_BLOCK = 1 << 16
"""Bytes per read from the end of a file."""

_LOOK_AGAIN_S = 0.5
"""Polling interval of a waiting writer."""

Event = dict[str, Any]


def cell_id(lane: str, batch: int) -> str:
    """Id of the cell of a lane at a batch size."""
    return f"{lane}-b{batch}"


class Journal:
    """Appends events to the journal of a study directory; one process at a time.

    ``on_event`` is called with every event after it is on disk, and ``on_wait`` once before waiting for another writer;
    None does not wait. Raises `JournalError` if another process is writing this journal, or the directory is not
    writable.
    """

    def __init__(
        self,
        directory: Path,
        on_event: Callable[[Event], None] = lambda event: None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.path = directory / FILE_NAME
        self._on_event = on_event
        self._lock = FileLock(directory / _LOCK)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._acquire(on_wait)
            self._check, self._latest = _drop_half_line(self.path)
            self._file = self.path.open("ab", buffering=0)
        except JournalError:
            self._lock.release()
            raise
        except OSError as error:
            self._lock.release()
            if disk_space.is_lacking(error):
                raise disk_space.lacking("opening the journal", directory) from error
            raise JournalError(
                f"{directory}: the journal cannot be written ({error.strerror}): copy the study to where it can be"
            ) from None

    def _acquire(self, on_wait: Callable[[], None] | None) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            if on_wait is None:
                raise _busy(self.path.parent) from None
            on_wait()
            self._lock.acquire(poll_interval=_LOOK_AGAIN_S)

    def append(self, event: str, **fields: Any) -> Event:
        """Write an event, force it to disk, then call the observer.

        Raises `DiskFullError` if the disk is full; nothing of the event is left behind.
        """
        # A clock that is set back must not end a study before its beginning.
        line = {"event": event, "at": max(time.time(), self._latest), **fields}
        # A line that is written but not counted would make the next one look forged.
        with interruption.deferred():
            self._write(line)
        self._on_event(line)
        return line

    def _write(self, line: Event) -> None:
        content, check = line_of(line, self._check)
        before = os.fstat(self._file.fileno()).st_size
        try:
            while content:  # what a disk or a limit cuts short is refused when it goes on
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # The next event must not follow half of this one.
            os.ftruncate(self._file.fileno(), before)
            if disk_space.is_lacking(error):
                raise disk_space.lacking("writing the journal", self.path.parent) from error
            error.filename = error.filename or str(self.path)
            raise
        self._check, self._latest = check, line["at"]

    def tell(self, event: str, **fields: Any) -> None:
        """Pass an event to the observer without writing it, such as the current stage."""
        self._on_event({"event": event, "at": time.time(), **fields})

    def close(self) -> None:
        """Release the journal for another process."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Block writers of a journal within a ``with`` block. Raises `JournalError` if another process is writing it."""
    lock = FileLock(directory / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _busy(directory) from None
    try:
        yield
    finally:
        lock.release()


def _busy(directory: Path) -> JournalError:
    return JournalError(f"{directory}: another process is running this study, or recording it: wait for it to end")


class Reader:
    """Reads a growing journal line by line, in constant memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines = 0
        self._offset = 0
        self._check = ""

    def new(self) -> Iterator[Event]:
        """Yield the events not read before, in order, without an incomplete last line.

        Raises `JournalError`, which names file and line, if there is no journal, a line is damaged, or a newer version
        wrote it.
        """
        path = _path(self.directory)
        with path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                event, self._check = _event(path, line, f"line {self.lines + 1}", self._check)
                self._offset += len(line)
                self.lines += 1
                yield event


def read(directory: Path) -> Iterator[Event]:
    """Yield the events of a study in order, without an incomplete last line. Raises as `Reader.new`."""
    return Reader(directory).new()


def parsed(lines: Iterable[bytes], where: str) -> Iterator[Event]:
    """Parse whole lines, checking each against the one before it.

    ``where`` names the journal in messages. Raises `JournalError`, which names the line, if one is damaged, or a newer
    version wrote it.
    """
    check = ""
    for number, line in enumerate(lines, 1):
        event, check = _event(where, line, f"line {number}", check)
        yield event


def first(directory: Path) -> Event | None:
    """Return the first event; None when the study was killed before it. Raises as `Reader.new`."""
    return next(read(directory), None)


def read_backwards(directory: Path) -> Iterator[Event]:
    """Yield the events of a study, last one first, reading no more than needed.

    Only a reading from the start can verify the digests. Use these events for nothing but the next step. Raises as
    `Reader.new`.
    """
    first(directory)  # says what is wrong with the journal as a whole
    path = _path(directory)
    with path.open("rb") as file:
        for line in islice(_lines_from_end(file), 1, None):
            yield _event(path, line + b"\n", "a line")[0]


def _path(directory: Path) -> Path:
    path = directory / FILE_NAME
    if not path.is_file():
        raise JournalError(f"{directory}: no {FILE_NAME} here; name the directory of a study")
    return path


def line_of(event: Event, before: str) -> tuple[bytes, str]:
    """Serialise an event; return its line and digest. ``before`` is that of the previous line; empty for the first."""
    content = json.dumps(event, separators=(",", ":"), allow_nan=True).encode()[:-1]
    check = _check_of(content, before)
    return content + _CHECK.format(check).encode(), check


def _check_of(content: bytes, before: str) -> str:
    return hashlib.sha256(before.encode() + content).hexdigest()[:_CHECK_CHARACTERS]


def _event(path: Path | str, line: bytes, name: str, before: str | None = None) -> tuple[Event, str]:
    """Parse a line; return its event and digest.

    ``name`` is that of the line in errors. ``before`` is the digest of the previous line: empty for the first one, and
    None when unknown.
    """
    content, check, end = line.rpartition(b',"check":"')
    digest = end[:_CHECK_CHARACTERS].decode("ascii", "replace")
    try:
        event = json.loads(content + b"}") if check and end == f'{digest}"}}\n'.encode() else None
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        versions = event.get("versions")
        writer = versions.get("mlflow-ngraph") if isinstance(versions, dict) else None
        other = formats.version_mismatch(event.get("schema_version", SCHEMA_VERSION), SCHEMA_VERSION, writer)
        if other and before in (None, "") and _check_of(content, "") == digest:
            raise JournalError(f"{path}: {other}")
        if before is None or _check_of(content, before) == digest:
            return event, digest
    raise JournalError(
        f"{path}: {name} is damaged: it, or what stood before it, was changed, lost or moved; restore the file, or start "
        "the study afresh"
    )


def _lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text after the last line break, empty in a complete journal, then the lines from last to first."""
    position = file.seek(0, os.SEEK_END)
    begun = b""
    while position:
        size = min(position, _BLOCK)
        position = file.seek(position - size)
        begun, *lines = (file.read(size) + begun).split(b"\n")
        yield from reversed(lines)
    yield begun


def _drop_half_line(path: Path) -> tuple[str, float]:
    """Truncate an incomplete last line. Return digest and time of the last complete one; empty and 0 without one."""
    if not path.exists():
        return "", 0.0
    with path.open("r+b") as file:
        half, *last = islice(_lines_from_end(file), 2)
        event, check = _event(path, last[0] + b"\n", "the last line") if last else ({}, "")
        file.truncate(file.seek(0, os.SEEK_END) - len(half))
    at = event.get("at")
    return check, at if isinstance(at, float) and math.isfinite(at) else 0.0
