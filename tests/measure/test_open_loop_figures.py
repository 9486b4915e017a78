"""What served requests say, on queues whose behaviour is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.measure import open_loop_figures
from mlflow_ngraph.measure.open_loop import schedule, serve
from tests.measure.test_open_loop import MS, SimulatedClock


def event(rate: float, seconds: float, service_ns: int = MS, *, limit: float = 2.0, oversleeps_ns: int = 0) -> Any:
    clock = SimulatedClock(oversleeps_ns)
    due = schedule(rate, seconds, "poisson", [1])
    served = serve([clock.spend(service_ns)], due, limit * seconds, clock)
    return {
        "session": 1, "step": 0, "purpose": "rate", "process": "poisson", "rate": rate, "window_s": seconds, "servers": 1,
        "due_ns": served.due_ns, "waited_ns": served.waited_ns, "served_ns": served.served_ns,
        "wall_s": seconds, "machine": watched(seconds, seconds),
    }  # fmt: skip


def watched(seconds: float, machine_busy_s: float) -> dict[str, Any]:
    """One processor was busy with serving."""
    return {"seconds": seconds, "cpu_s": seconds, "counted": {"machine_busy_s": machine_busy_s}, "values": {}}


def row(*args: Any, **options: Any) -> dict[str, Any]:
    return open_loop_figures.row(
        event(*args, **options), processors=2, quiet={"max_foreign_cpu_percent": 10, "max_spread": 0.1}
    )


def test_an_engine_that_keeps_up_serves_what_is_offered() -> None:
    found = row(700, 20)
    assert found["offered_rate"] == pytest.approx(700)
    assert found["achieved_rate"] == pytest.approx(700, rel=0.01)
    assert found["utilisation"] == pytest.approx(0.7, rel=0.01)
    assert (found["unserved"], found["overloaded"], found["valid"]) == (0, False, True)
    assert found["queue_share"] == pytest.approx(found["wait_mean_ms"] / found["latency_mean_ms"])
    assert found["latency_p50_ms"] < found["latency_p90_ms"] < found["latency_p99_ms"] < found["latency_p999_ms"]


@pytest.mark.parametrize(("rate", "overloaded"), [(500, False), (900, False), (980, False), (1010, True), (1300, True)])
def test_overload_is_work_that_comes_faster_than_it_is_done(rate: float, overloaded: bool) -> None:
    found = row(rate, 20)
    assert found["overloaded"] is overloaded
    assert found["achieved_rate"] <= 1001


def test_an_engine_that_became_slow_is_overloaded_though_it_was_not_on_average() -> None:
    clock = SimulatedClock()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.time += MS // 5 if calls < 4000 else 2 * MS

    served = serve([call], schedule(700, 10, "uniform", [1]), 100, clock)
    made = {**event(700, 10), "due_ns": served.due_ns, "waited_ns": served.waited_ns, "served_ns": served.served_ns}
    assert np.mean(served.served_ns) * 700 / 1e9 < 1
    assert open_loop_figures.figures(made)["overloaded"]


def test_percentiles_that_the_unserved_would_be_in_are_missing() -> None:
    found = row(3000, 10)
    assert found["unserved"] == pytest.approx(10000, rel=0.01)
    assert found["overloaded"]
    assert "latency_p50_ms" in found
    assert not {"latency_p90_ms", "latency_p99_ms", "latency_mean_ms"} & set(found)


@pytest.mark.parametrize(
    ("requests", "known"),
    [
        (5, {"p50"}),
        (10, {"p50", "p90"}),
        (99, {"p50", "p90"}),
        (100, {"p50", "p90", "p99"}),
        (999, {"p50", "p90", "p99"}),
    ],
)
def test_a_percentile_needs_a_request_beyond_it(requests: int, known: set[str]) -> None:
    assert set(open_loop_figures.percentiles(np.arange(requests, dtype=float))) == known
    assert set(open_loop_figures.percentiles(np.arange(1000.0))) == {"p50", "p90", "p99", "p999"}


def test_a_generator_that_is_late_makes_a_rate_invalid() -> None:
    assert row(100, 20, oversleeps_ns=MS // 100)["valid"]
    late = row(100, 20, oversleeps_ns=MS // 10)
    assert not late["valid"]
    assert "started 0.1 ms late in the median" in late["reason"]


def test_other_processes_make_a_rate_invalid() -> None:
    made = {**event(100, 10), "machine": watched(10, 15.0)}
    found = open_loop_figures.row(made, processors=2, quiet={"max_foreign_cpu_percent": 10, "max_spread": 0.1})
    assert (found["valid"], "other processes used at least 21 %" in found["reason"]) == (False, True)


def test_waiting_in_the_queue_is_not_the_generators_doing() -> None:
    """Two servers: the third request of four at once waits for the first to end, and one is late by a tenth."""
    due, served = np.zeros(4), np.array([10.0, 30.0, 10.0, 10.0])
    waited = np.array([0.0, 0.0, 10.0, 21.0])  # the fourth could have begun at 20
    assert open_loop_figures.lateness(due, waited, served, 2).tolist() == [0, 0, 0, 1]


def test_the_search_finds_the_highest_rate_under_the_bound() -> None:
    """The waiting time of a queue grows without bound towards the capacity; the answer is known."""
    for bound in (1.2, 2.0, 5.0, 20.0):
        truth, search, tried = 1000 * (1 - 1 / bound), open_loop_figures.Search(1000), []
        while (rate := search.next()) is not None:
            tried.append(rate)
            search.learn(rate, kept=1 / (1 - rate / 1000) <= bound)
        best = max([rate for rate in tried if rate <= truth], default=0)
        assert truth - 20 <= best <= truth
        assert len(tried) <= 6


def test_the_search_begins_with_what_is_known_and_ends_in_any_case() -> None:
    search = open_loop_figures.Search(1000)
    search.learn(800, kept=True)
    search.learn(900, kept=False)
    assert search.next() == 850
    hopeless = open_loop_figures.Search(1000)
    tried = 0
    while (rate := hopeless.next()) is not None:
        hopeless.learn(rate, kept=False)
        tried += 1
    assert tried <= open_loop_figures.SEARCH_RATES


def test_a_rate_above_a_broken_one_counts_for_nothing() -> None:
    good = {"valid": True, "overloaded": False, "latency_p99_ms": 1.0, "latency_p999_ms": 2.0}
    rows = [
        {**good, "rate": 10.0},
        {**good, "rate": 20.0, "latency_p99_ms": 9.0},
        {**good, "rate": 30.0},
        {**good, "rate": 40.0, "overloaded": True},
        {**good, "rate": 35.0, "valid": False},
    ]
    assert open_loop_figures.headlines(rows, 5.0) == {
        "serve_peak_rate": 30.0,
        "serve_peak_p99_ms": 1.0,
        "serve_peak_p999_ms": 2.0,
        "serve_max_rate": 10.0,
        "serve_max_rate_p99_ms": 1.0,
    }
    assert "serve_max_rate" not in open_loop_figures.headlines(rows, None)
    assert open_loop_figures.headlines(rows[3:], 5.0) == {}
