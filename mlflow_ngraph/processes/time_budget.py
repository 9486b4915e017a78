"""The time that a study may take, and what of it is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TIME_UP = "the time of the study was up"


class TimeBudget:
    """Counts down to one end, which is the same for everybody: whatever may take long asks how much is left.

    Parameters
    ----------
    seconds : float | None
        That everything may take from now on; None for as long as it takes.
    clock : Callable[[], float]
        Seconds that only grow.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = math.inf if seconds is None else clock() + seconds
        """When children are ended, however far they are."""
        self._share_end = math.inf
        """When nothing more is begun of what has only a share."""

    @property
    def limited(self) -> bool:
        """Whether there is an end."""
        return math.isfinite(self._end)

    @property
    def over(self) -> bool:
        """Whether nothing more is begun."""
        return self.left() <= 0

    def left(self) -> float:
        """Seconds in which something may still be begun; below zero where it is late."""
        return min(self._end, self._share_end) - self._clock()

    def left_at_most(self) -> float:
        """Seconds after which children are ended."""
        return self._end - self._clock()

    def waited(self, seconds: float) -> None:
        """Somebody else had the machine for so long, which does not count."""
        self._end += seconds

    def reserve(self, seconds: float) -> None:
        """Keep so much for what comes after everything that asks."""
        self._end -= seconds

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Within the block nothing is begun after this share of what is left, from 0 to 1, is used. A part may have parts.

        What is under way by then goes on: an engine that is nearly loaded is worth more than one that nobody has begun.
        """
        whole = self._share_end
        if self.limited and not self.over:
            self._share_end = self._clock() + share * self.left()
        try:
            yield
        finally:
            self._share_end = whole

    @contextmanager
    def ending(self, share: float) -> Iterator[None]:
        """As `part`, and children are ended after it."""
        whole = self._end
        if self.limited and not self.over:
            self._end = self._clock() + share * self.left()
        try:
            yield
        finally:
            self._end = whole
