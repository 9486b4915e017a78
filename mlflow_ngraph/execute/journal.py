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
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import space

SCHEMA_VERSION = 1
FILE_NAME = "journal.jsonl"

Event = dict[str, Any]


def cell_id(lane: str, batch: int) -> str:
    """What events call the cell of a lane at a batch size."""
    return f"{lane}-b{batch}"


class Journal:
    """Appends events to the journal of one study directory; at most one process at a time.

    Raises
    ------
    JournalError: another process is writing this journal.
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
        DiskFullError: there is no room for it; nothing of it is left behind.
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


def read(directory: Path) -> Iterator[Event]:
    """The events of a study in order. A half-written last line, left by a kill, is not an event.

    Raises
    ------
    JournalError: there is no journal, a line is damaged, or a newer version wrote it.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        raise JournalError(f"{directory}: no {FILE_NAME} here; name the directory of a study")
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            event = json.loads(line)
        except ValueError:
            raise JournalError(f"{path}: line {number} is damaged; restore it or start the study afresh") from None
        if event.get("schema_version", SCHEMA_VERSION) > SCHEMA_VERSION:
            raise JournalError(f"{path}: written by a newer version of mlflow-ngraph; upgrade to read it")
        yield event


def _drop_half_line(path: Path) -> None:
    """Cut off a last line that a kill interrupted, so that the next event starts a line of its own."""
    if not path.exists():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end != len(content):
        os.truncate(path, end)
