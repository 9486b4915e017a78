"""Requests are admitted as long as those under way leave them time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mlflow_ngraph_serve.pace import Pace


def admitted(pace: Pace) -> int:
    """Requests that it lets in when they come at once."""
    count = 0
    while count < 1000 and pace.admits(time.monotonic()):
        pace.enter()
        count += 1
    return count


def test_as_many_are_admitted_as_can_be_answered_in_time() -> None:
    assert admitted(Pace(1.0, 0.1)) == pytest.approx(9, abs=1)
    assert admitted(Pace(0.05, 0.1)) == 1, "from one alone is learnt that it takes less by now"
    assert admitted(Pace()) == 1000, "without a bound"


def test_time_that_a_request_has_waited_already_counts() -> None:
    pace = Pace(1.0, 0.1)
    pace.enter()
    assert pace.admits(time.monotonic())
    assert not pace.admits(time.monotonic() - 0.9)


def test_it_learns_from_what_answers_take() -> None:
    pace = Pace(1.0, 0.1, 0.001)
    for _ in range(100):
        # Ten at once take no longer than one: they share batches.
        for place in [pace.enter() for _ in range(10)]:
            pace.leave(place, 0.1)
    assert 10 < admitted(pace) < 1000
    slow = Pace(1.0, 0.001)
    for _ in range(100):
        slow.leave(slow.enter(), 0.3)
    assert admitted(slow) <= 3
    # What was not answered tells nothing.
    before = Pace(1.0, 0.1)
    before.leave(before.enter(), None)
    assert admitted(before) == admitted(Pace(1.0, 0.1))


def test_refusals_take_a_share_of_the_time_only() -> None:
    async def refused(pace: Pace, count: int) -> float:
        start = time.monotonic()
        await asyncio.gather(*(pace.refuse() for _ in range(count)))
        return time.monotonic() - start

    with ThreadPoolExecutor(1) as pool:  # this thread may have a loop of a browser
        assert pool.submit(asyncio.run, refused(Pace(1.0, 0.1, 0.0005), 40)).result() >= 0.2
        assert pool.submit(asyncio.run, refused(Pace(), 1000)).result() < 5, "at once where there is no bound"
