"""Admission by the time that requests take, so that a bound on the latency is kept for those that are answered.

What queues is not samples at the engine alone but requests in the web server, too, and how long one takes there changes with
the load of the machine. So it is learnt from answers how their time grows with the number of requests under way: as a line
through those of late. Where there is no line, since always as many are under way, it is taken to grow in proportion.
"""

from __future__ import annotations

import asyncio
import math
import time

_WEIGHT = 1 / 16
"""Weight of the last answer in means."""
_DEVIATIONS = 2
"""Mean deviations above the line that an answer is expected to take."""
_VARIED = 0.25
"""Variance of the number of requests under way from which on there is a line."""
_REFUSING = 0.1
"""Share of the web server's time for refusing requests."""
_LONGEST_S = 2.0
"""Delay of a refusal at most."""


class Pace:
    """How long requests take, and how many may be under way.

    Parameters
    ----------
    room_s : float
        Time within which requests are to be answered; infinite without a bound.
    first_s : float
        Time of a request that is alone.
    outside_s : float
        Part of it outside the engine.
    """

    def __init__(self, room_s: float = math.inf, first_s: float = 0.0, outside_s: float = 0.0) -> None:
        self._room_s, self._outside_s = room_s, outside_s
        self._seconds, self._places = first_s, 1.0
        self._covariance = self._variance = self._deviation_s = 0.0
        self._under_way = 0
        self._refused = 0

    def admits(self, begun: float) -> bool:
        """Test if a request that has begun then, by the monotonic clock, would be answered in time.

        One that is alone is admitted in any case: from it is learnt that the machine is quiet again.
        """
        if not self._under_way:
            return True
        expected_s = self._expected_s(self._under_way + 1) + _DEVIATIONS * self._deviation_s
        return time.monotonic() - begun + expected_s <= self._room_s

    def in_time(self, seconds: float) -> bool:
        """Test if an answer keeps the bound after so long."""
        return seconds <= self._room_s

    def enter(self) -> int:
        """Count a request that is under way, and return how many there are."""
        self._under_way += 1
        return self._under_way

    def leave(self, place: int, seconds: float | None) -> None:
        """End what `enter` began, and learn from the seconds that it took if it was answered."""
        self._under_way -= 1
        if seconds is None:
            return
        self._deviation_s += _WEIGHT * (abs(seconds - self._expected_s(place)) - self._deviation_s)
        more, longer = place - self._places, seconds - self._seconds
        self._places += _WEIGHT * more
        self._seconds += _WEIGHT * longer
        self._covariance += _WEIGHT * ((1 - _WEIGHT) * more * longer - self._covariance)
        self._variance += _WEIGHT * ((1 - _WEIGHT) * more * more - self._variance)

    def _expected_s(self, place: int) -> float:
        """The line: time of a request that is one of ``place`` under way."""
        proportion = self._seconds / self._places
        slope = self._covariance / self._variance if self._variance > _VARIED else proportion
        # No more than in proportion, and no less than what they cost one after the other.
        slope = min(max(slope, self._outside_s), proportion)
        return self._seconds + slope * (place - self._places)

    async def refuse(self) -> None:
        """Wait until refusals take their share of time only: clients that ask again at once would take that of others."""
        if math.isinf(self._room_s):
            return
        self._refused += 1
        try:
            await asyncio.sleep(min(_LONGEST_S, self._refused * self._outside_s / _REFUSING))
        finally:
            self._refused -= 1
