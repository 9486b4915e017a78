"""The time of a study, and the parts of it."""

from __future__ import annotations

import math

import pytest

from mlflow_ngraph.processes.time_budget import TimeBudget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_limit_there_is_always_time() -> None:
    budget = TimeBudget()
    with budget.part(0.1):
        assert (budget.limited, budget.over, budget.left()) == (False, False, math.inf)


def test_a_part_ends_earlier_and_what_it_leaves_is_for_the_others(clock: Clock) -> None:
    budget = TimeBudget(110.0, clock)
    budget.reserve(10.0)
    with budget.part(0.5):
        assert (budget.left(), budget.until_end()) == (50, 100)
        with budget.part(0.2):
            clock.now += 10
            assert budget.over
        assert budget.left() == 40
    assert budget.left() == 90
    with budget.ending(0.5):
        assert (budget.left(), budget.until_end()) == (45, 45)
        clock.now += 95
        assert budget.over
    assert budget.left() == -5
    with budget.part(0.5):
        assert budget.left() == -5, "a part of nothing is not more"


def test_waiting_for_the_machine_does_not_count(clock: Clock) -> None:
    budget = TimeBudget(100.0, clock)
    clock.now += 500
    budget.waited(500.0)
    assert budget.left() == 100
