"""Signals that ask a study to end, and where it can: not within a line of the journal, and not within a slice that is timed.

The first one ends the study tidily: the slice that is timed comes to its end, and what is known is recorded. Ctrl-C a second
time ends it at once, wherever it is. Any other signal may come as often as it likes, and counts once: whoever ends a group of
processes reaches each of them several times.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The process was asked to end; ``signum`` says how. What was measured is in the journal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interruption:
    """What signals have asked of a study.

    Parameters
    ----------
    tell : Callable[[bool], None]
        Called with the first signal, and with whether something that is under way comes to its end before.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self.hurried = False
        """Whether Ctrl-C came again: nobody waits for anything that could be done later."""
        self._tell = tell
        self._signum: int | None = None
        """The first one."""
        self._due = False
        """Whether it is still to be raised."""
        self._tidying = False

    @property
    def asked(self) -> bool:
        """Whether any signal has come."""
        return self._signum is not None

    def tidied(self) -> None:
        """What must not be broken off is done: from now on another Ctrl-C is raised where it comes."""
        self._tidying = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """As Python calls what handles a signal."""
        if self._signum is None:
            self._signum, self._due = signum, True
            # It may come while a line is being printed, and streams refuse to be written to twice at once.
            with suppress(RuntimeError):
                self._tell(bool(_Blocks.entered))
        elif signum == signal.SIGINT:
            self.hurried = self._due = True
        self.raise_if_due()

    def raise_if_due(self) -> None:
        """Raise what was asked, unless something has to come to its end before."""
        waits = any(not breakable or not self.hurried for breakable in _Blocks.entered)
        if self._signum is not None and self._due and not self._tidying and not waits:
            self._due, self._tidying = False, True
            raise Interrupted(self._signum)


class _Blocks:
    """Of this process, because signals are: Python hands them to its main thread."""

    entered: ClassVar[list[bool]] = []
    """The blocks that it is in: whether Ctrl-C a second time breaks each off."""
    listening: Interruption | None = None


@contextmanager
def whole(*, breakable: bool = False) -> Iterator[None]:
    """Let signals wait for the end of the block.

    Parameters
    ----------
    breakable : bool
        Not those that ask a second time.
    """
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


@contextmanager
def listening(tell: Callable[[bool], None]) -> Iterator[Interruption]:
    """Within the block signals raise `Interrupted`, where that is possible; but for those that whoever started us has ignored.

    Parameters
    ----------
    tell : Callable[[bool], None]
        See `Interruption`.
    """
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
