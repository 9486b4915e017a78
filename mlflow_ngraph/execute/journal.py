"""The append-only local record of a study.

One JSON object a line, each on disk before anybody else sees it. Whatever else exists (metrics, tables,
runs in MLflow) is derived from these lines.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import space

SCHEMA_VERSION = 1
FILE_NAME = "journal.jsonl"
_BLOCK = 1 << 16
"""Bytes that are read at once from the end of a file."""

Event = dict[str, Any]


def cell_id(lane: str, batch: int) -> str:
    """What events call the cell of a lane at a batch size."""
    return f"{lane}-b{batch}"


class Journal:
    """Appends events to the journal of one study directory; at most one process at a time.

    Raises
    ------
    JournalError
        Another process is writing this journal.
    """

    def __init__(self, directory: Path, on_event: Callable[[Event], None] = lambda event: None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / FILE_NAME
        self._on_event = on_event
        self._lock = FileLock(directory / "journal.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise JournalError(f"{directory}: another process is running this study") from None
        _drop_half_line(self.path)
        self._file = self.path.open("ab", buffering=0)

    def append(self, event: str, **fields: Any) -> Event:
        """Write an event, force it to disk, then tell the observer.

        Raises
        ------
        DiskFullError
            There is no room for it; nothing of it is left behind.
        """
        line = {"event": event, "at": time.time(), **fields}
        content = json.dumps(line, separators=(",", ":"), allow_nan=True).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            # The next event must not stand behind half of this one.
            os.ftruncate(self._file.fileno(), before)
            if space.is_lacking(error):
                raise space.lacking("writing the journal", self.path.parent) from error
            raise
        self._on_event(line)
        return line

    def tell(self, event: str, **fields: Any) -> None:
        """Tell the observer something that need not survive, such as what is being compiled."""
        self._on_event({"event": event, "at": time.time(), **fields})

    def close(self) -> None:
        """Let another process write."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader:
    """Reads the journal of a study while it grows, a line at a time: no more of it is in memory.

    Parameters
    ----------
    directory : Path
        Of the study.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offset = 0
        self._lines = 0

    def new(self) -> Iterator[Event]:
        """The events that were not read before, in order. A half-written last line is none until it is whole.

        Raises
        ------
        JournalError
            There is no journal, a line is damaged, or a newer version wrote it.
        """
        path = _path(self._directory)
        with path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                event = _event(path, line, f"line {self._lines + 1}")
                self._offset += len(line)
                self._lines += 1
                yield event


def read(directory: Path) -> Iterator[Event]:
    """The events of a study in order. A half-written last line, left by a kill, is not an event.

    Raises
    ------
    JournalError
        As in `Reader.new`.
    """
    return Reader(directory).new()


def first(directory: Path) -> Event | None:
    """The event that a journal begins with; None where the study was killed before it.

    Raises
    ------
    JournalError
        As in `Reader.new`.
    """
    return next(read(directory), None)


def read_backwards(directory: Path) -> Iterator[Event]:
    """The events of a study, the last one first; reads no more of the journal than is asked for.

    Raises
    ------
    JournalError
        As in `Reader.new`.
    """
    first(directory)  # says what is wrong with the journal as a whole
    path = _path(directory)
    with path.open("rb") as file:
        for line in islice(_lines_from_end(file), 1, None):
            yield _event(path, line, "a line")


def _path(directory: Path) -> Path:
    path = directory / FILE_NAME
    if not path.is_file():
        raise JournalError(f"{directory}: no {FILE_NAME} here; name the directory of a study")
    return path


def _event(path: Path, line: bytes, name: str) -> Event:
    """The event that a line holds; ``name`` is what an error calls the line."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise JournalError(f"{path}: {name} is damaged; restore it or start the study afresh")
    if event.get("schema_version", SCHEMA_VERSION) > SCHEMA_VERSION:
        raise JournalError(f"{path}: written by a newer version of mlflow-ngraph; upgrade to read it")
    return event


def _lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """What stands behind the last line break, which a whole journal has nothing behind, then its lines, last one first."""
    position = file.seek(0, os.SEEK_END)
    begun = b""
    while position:
        size = min(position, _BLOCK)
        position = file.seek(position - size)
        begun, *lines = (file.read(size) + begun).split(b"\n")
        yield from reversed(lines)
    yield begun


def _drop_half_line(path: Path) -> None:
    """Cut off a last line that a kill interrupted, so that the next event starts a line of its own."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        half = next(_lines_from_end(file))
        file.truncate(file.seek(0, os.SEEK_END) - len(half))
