"""Requests of a relay are started again as soon as they have ended, and none is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_ngraph.compilers.request_queue import RequestQueue


class Log:
    """Writes down what is done, in order."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, name: str) -> Callable[[], None]:
        return lambda: self.steps.append(name)

    def relay(self) -> RequestQueue:
        names = ("a", "b")
        return RequestQueue(
            [self.step(f"start {name}") for name in names], [self.step(f"wait {name}") for name in names]
        )


def test_all_are_started_before_the_first_is_waited_for() -> None:
    log = Log()
    log.relay().run()
    assert log.steps == ["start a", "start b", "wait a", "wait b"]


def test_in_a_stream_each_is_started_again_before_the_next_is_waited_for() -> None:
    log = Log()
    with log.relay().stream() as turn:
        turn()
        turn()
    turns = ["wait a", "start a", "wait b", "start b"]
    assert log.steps == ["start a", "start b", *turns, *turns, "wait a", "wait b"]


def test_what_is_in_flight_is_waited_for_whatever_happens() -> None:
    log = Log()
    with pytest.raises(RuntimeError), log.relay().stream():
        raise RuntimeError
    assert log.steps == ["start a", "start b", "wait a", "wait b"]
