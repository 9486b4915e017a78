"""Interruption: signals that end a study, deferred within a journal line and a timed slice.

The first signal ends the study tidily: the current slice completes, and results are recorded. A second Ctrl-C ends it
at once. Other signals count once however often they come, since ending a process group delivers several.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import ClassVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_name(number: int) -> str:
    """Name of a signal; those without one, such as real-time signals, have their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Interrupted(KeyboardInterrupt):
    """The process was asked to end, by ``signum``. The results so far are in the journal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal_name(signum))
        self.signum = signum
        self.measured: Path | None = None
        """Directory of the study, if it was measured completely."""
        self.advice = ""
        """The next step in words; empty where running the same command again goes on."""


class Interruption:
    """The signals that a study has received.

    ``tell`` is called with the first signal, and with True when the current step completes first.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self.hurried = False
        """Ctrl-C came again: only necessary work is done."""
        self._tell = tell
        self._signum: int | None = None
        """The first signal."""
        self._due = False
        """The signal is not yet raised."""
        self._tidying = False

    @property
    def asked(self) -> bool:
        """Any signal has come."""
        return self._signum is not None

    def tidied(self) -> None:
        """Mark the end of the tidy work: another Ctrl-C is raised at once."""
        self._tidying = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._signum is None:
            self._signum, self._due = signum, True
            # It may come during a print, and streams refuse nested writes.
            with suppress(RuntimeError):
                self._tell(bool(_Blocks.entered))
        elif signum == signal.SIGINT:
            self.hurried = self._due = True
        self.raise_if_due()

    def raise_if_due(self) -> None:
        """Raise the signal, unless a block defers it."""
        waits = any(not breakable or not self.hurried for breakable in _Blocks.entered)
        if self._signum is not None and self._due and not self._tidying and not waits:
            self._due, self._tidying = False, True
            raise Interrupted(self._signum)


@contextmanager
def ending() -> Iterator[None]:
    """Raise `Interrupted` on SIGTERM and SIGHUP within the block, once, except those that the parent process ignores."""

    def end(signum: int, frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # another one must not break off the cleaning up
        if not _Blocks.entered:
            raise Interrupted(signum)
        _Blocks.ending = signum

    main = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP) if main}
    before = {number: handler for number, handler in found.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Blocks:
    """State of this process: Python delivers signals to its main thread."""

    entered: ClassVar[list[bool]] = []
    """The entered blocks: True for those that a second Ctrl-C breaks off."""
    listening: Interruption | None = None
    ending: int | None = None
    """A signal that `ending` received within a block and has not raised yet."""


@contextmanager
def deferred(*, breakable: bool = False) -> Iterator[None]:
    """Defer signals to the end of the block; a second Ctrl-C not if it is ``breakable``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Blocks.entered.append(breakable)
    try:
        yield
    finally:
        _Blocks.entered.pop()
        if _Blocks.listening is not None:
            _Blocks.listening.raise_if_due()
        if _Blocks.ending is not None and not _Blocks.entered:
            signum, _Blocks.ending = _Blocks.ending, None
            raise Interrupted(signum)


@contextmanager
def listening(tell: Callable[[bool], None]) -> Iterator[Interruption]:
    """Raise `Interrupted` on signals within the block, except those that the parent process ignores."""
    interruption = Interruption(tell)
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    outer, _Blocks.listening = _Blocks.listening, interruption
    for number in heard:
        signal.signal(number, interruption.handle)
    try:
        yield interruption
    finally:
        for number in heard:
            signal.signal(number, before[number])
        _Blocks.listening = outer
