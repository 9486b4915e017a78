"""Message on standard error while something takes longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_ngraph.cli import streams

_AFTER_S = 1.0
_ERASE = "\r\x1b[2K"


@contextmanager
def waiting(what: str, *, logged: bool = False) -> Iterator[None]:
    """Show ``what`` if the block takes long; on a terminal the line is erased afterwards.

    With ``logged`` it is said, as a note, also where no terminal is.
    """
    stream = streams.beside(sys.stderr)
    terminal = stream.isatty()
    if not terminal and not logged:
        yield
        return
    shown = threading.Event()

    def show() -> None:
        shown.set()
        stream.write(f"{what} ..." if terminal else f"note: {what} ...\n")
        stream.flush()

    timer = threading.Timer(_AFTER_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if terminal and shown.is_set():
            stream.write(_ERASE)
            stream.flush()
