"""The time that a study may take, and how what is left of it is split."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TIME_UP = "the time of the study was up"


class TimeBudget:
    """Counts down. Whatever may take long asks it how much is left.

    Parameters
    ----------
    seconds : float | None
        That everything may take from now on; None for as long as it takes.
    clock : Callable[[], float]
        Seconds that only grow.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = [math.inf if seconds is None else clock() + seconds]
        """When children are ended, however far they are: the last one is that of what is under way."""
        self._shares: list[float] = []
        """When nothing more is begun."""

    @property
    def limited(self) -> bool:
        """Whether there is an end."""
        return math.isfinite(self._ends[0])

    @property
    def over(self) -> bool:
        """Whether nothing more is begun."""
        return self.left() <= 0

    def left(self) -> float:
        """Seconds in which something may still be begun; below zero where it is late."""
        return min(*self._ends, *self._shares, math.inf) - self._clock()

    def left_at_most(self) -> float:
        """Seconds after which children are ended."""
        return min(self._ends) - self._clock()

    def left_outside(self) -> float:
        """What would be left if what is under way had no share of its own."""
        return min(*self._ends, *self._shares[:-1], math.inf) - self._clock()

    def share_anew(self, seconds: float) -> None:
        """Give what is under way so many seconds from now on, in place of its present share."""
        self._shares[-1] = self._clock() + seconds

    def waited(self, seconds: float) -> None:
        """Somebody else had the machine for so long, which counts for nobody."""
        self._ends = [end + seconds for end in self._ends]

    @contextmanager
    def share(self, seconds: float) -> Iterator[None]:
        """Within the block nothing is begun after so many seconds."""
        self._shares.append(self._clock() + seconds)
        try:
            yield
        finally:
            self._shares.pop()

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Within the block children are ended after so many seconds."""
        self._ends.append(self._clock() + seconds)
        try:
            yield
        finally:
            self._ends.pop()
