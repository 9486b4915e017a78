"""TimeBudget: counts down to the time limit of a study, and limits its parts to shares of the remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TIME_UP = "the time of the study was up"


class TimeBudget:
    """Counts down to one deadline for all parts of a study, ``seconds`` from now; None for no limit."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = math.inf if seconds is None else clock() + seconds
        """Deadline of all children."""
        self._share_end = math.inf
        """No further step of the current part begins after it."""

    @property
    def limited(self) -> bool:
        return math.isfinite(self._end)

    @property
    def over(self) -> bool:
        """No further step may begin."""
        return self.left() <= 0

    def left(self) -> float:
        """Seconds in which a step may begin; negative when late."""
        return min(self._end, self._share_end) - self._clock()

    def until_end(self) -> float:
        """Seconds until children are ended."""
        return self._end - self._clock()

    def waited(self, seconds: float) -> None:
        """Exclude the wait for another holder of the machine."""
        self._end += seconds

    def reserve(self, seconds: float) -> None:
        """Keep some seconds for the steps at the end."""
        self._end -= seconds

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Limit the block to a share of the remaining time, from 0 to 1. Parts may be nested.

        Steps under way at its end continue: a nearly loaded engine is worth more than a new one.
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
        """As `part`, and end children after it."""
        whole = self._end
        if self.limited and not self.over:
            self._end = self._clock() + share * self.left()
        try:
            yield
        finally:
            self._end = whole
