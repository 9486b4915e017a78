"""Make standard streams safe that are closed, lack Unicode or lost their reader; copy printed text."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO


class Copying:
    """A stream that records all text that passes."""

    def __init__(self, stream: TextIO, copy: Callable[[str], None]) -> None:
        self.stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        count = self.stream.write(text)
        self._copy(text)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def beside(stream: TextIO | Copying) -> TextIO:
    """The underlying stream, for text that is not recorded."""
    return stream.stream if isinstance(stream, Copying) else stream


def prepare() -> bool:
    """Make printing safe: open closed streams, escape characters that they cannot encode, and ignore a width of 0.

    Returns whether standard output was closed.
    """
    closed = sys.stdout is None
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # A file that is opened later must not become what everybody prints to; nor one of the process that this one becomes.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as the interpreter does it
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not os.environ.get("COLUMNS", "").strip("0"):
        os.environ.pop("COLUMNS", None)  # 0 is unknown, as for `shutil.get_terminal_size`
    return closed


def can_encode(text: str) -> bool:
    """Test if standard output can encode a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def reader_is_gone(stream: TextIO) -> bool:
    """Test if the reader of a stream is gone."""
    with suppress(OSError, ValueError):
        watched = select.poll()
        watched.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))
    return True


def silence(stream: TextIO) -> None:
    """Discard the buffer of a stream, so that the interpreter does not complain when it flushes at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
