"""Logs of children: read the last lines; once a child has ended, shorten its log and remove credentials from it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mlflow_ngraph import credentials

MOST_BYTES = 4 << 20
"""A longer log is shortened when its child has ended. A model may print at every inference."""
_HEAD_BYTES = 256 << 10
_END_BYTES = 1 << 20
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 16
"""Limits of the part shown: a model may print megabytes."""


def tail(log: Path) -> str:
    """The last lines of a log; empty when there is none."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])
    return ""


def tidy(log: Path) -> None:
    """Cut the middle out of a long log and say how much is gone, and remove credentials.

    Unreadable or unwritable logs stay as they are: no figure depends on them.
    """
    with contextlib.suppress(OSError), log.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        head, end = (_HEAD_BYTES, _END_BYTES) if size > MOST_BYTES else (0, size)
        stream.seek(0)
        content = stream.read(head)
        if head:
            content += b"\n[%d bytes were left out here]\n" % (size - head - end)
        stream.seek(size - end)
        text = (content + stream.read(end)).decode(errors="surrogateescape")
        clean = credentials.hidden(text)
        if head or clean != text:
            stream.seek(0)
            stream.write(clean.encode(errors="surrogateescape"))
            stream.truncate()
