from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph.measure.cpu_shares import Window
from mlflow_ngraph.measure.stability import (
    SliceFacts,
    clock_change,
    drift,
    problem,
    slice_spread,
)
from mlflow_ngraph.study_settings import Stability

RULES = Stability().model_dump()


def facts(median_s=0.01, wall_s=1.0, cpu_s=1.0, foreign_s=0.0, counted=(), **values: float) -> SliceFacts:
    counted = dict(counted)
    window = Window(wall_s, cpu_s, cpu_s + foreign_s, counted.get("stolen_s", 0.0))
    return SliceFacts(median_s, wall_s, window, counted, values)


def judged(slices: list[SliceFacts], processors: int = 2, **rules: Any) -> str | None:
    return problem(slices, processors, **{**RULES, **rules})


def medians(*values: float) -> list[SliceFacts]:
    return [facts(median_s=value) for value in values]


def test_a_quiet_machine_is_no_problem():
    quiet = [facts(counted={"throttled": 0, "swapped_mb": 0.0}, clock_mhz=3100, temperature_c=60.0)] * 10
    assert judged(quiet) is None


def test_a_machine_without_sensors_is_judged_by_its_times():
    bare = {"durations_ns": [10**7], "wall_s": 1.0}
    assert SliceFacts.of(bare) == SliceFacts(0.01, 1.0)
    assert judged([SliceFacts.of(bare)] * 10) is None


def test_the_facts_of_a_slice_are_what_the_worker_reports():
    counted, values = {"throttled": 3, "machine_busy_s": 2.0, "stolen_s": 0.1}, {"clock_mhz": 3100}
    machine = {"seconds": 1.1, "cpu_s": 1.9, "counted": counted, "values": values, "busy_s": {"0": 1.0}}
    taken = {"durations_ns": [10**7] * 3, "wall_s": 1.0, "machine": machine}
    assert SliceFacts.of(taken) == SliceFacts(0.01, 1.0, Window(1.1, 1.9, 2.0, 0.1), counted, values)


@pytest.mark.parametrize(
    ("slices", "reason", "remedy"),
    [
        ([facts(foreign_s=0.5)] * 5, "other processes used at least 20 % of the machine", "stop them"),
        (
            [facts(foreign_s=0.5, counted={"stolen_s": 0.4})] * 5,
            "others used at least 20 % of the machine meanwhile, and 80 % of that was stolen by other virtual machines",
            "a host of your own",
        ),
        ([facts(counted={"swapped_mb": 3.0})] * 5, "the machine swapped 15 MB", "free memory"),
        (
            [facts(foreign_s=0.5, counted={"quota_periods": 181, "quota_throttled": 158}, quota_processors=0.5)] * 2,
            "throttled in 316 of 362 periods by this container's quota of 0.5 processors",
            "raise it",
        ),
        (
            [facts(counted={"quota_periods": 181, "quota_throttled": 158})] * 2,
            "throttled in 316 of 362 periods by this container's quota; raise it",
            "raise it",
        ),
        ([facts(), facts(counted={"throttled": 2})], "slowed down for heat 2 times", "cool the machine"),
        ([facts(counted={"gpu_throttled_s": 0.1})] * 5, "slowed down for heat in 10 % of the time", "cool the machine"),
        (
            [facts(clock_mhz=clock) for clock in (3100, 3100, 2400, 2400, 2400)],
            "the clock went between 2400 and 3100 MHz (29 %)",
            "doctor",
        ),
        (
            [facts(temperature_c=value) for value in (50.0, 60.0, 75.0)],
            "the temperature rose by 25 °C to 75 °C",
            "warmup.max_seconds",
        ),
        (medians(*np.linspace(0.010, 0.012, 8)), "it became 20 % slower from its first slice to its last", "settle"),
        (medians(*np.linspace(0.012, 0.010, 8)), "it became 17 % faster from its first slice to its last", "settle"),
        (medians(0.010, 0.014, 0.009, 0.016, 0.011), "the medians of its slices scatter by", "quiet the machine"),
    ],
)
def test_every_reason_names_its_figure_and_a_remedy(slices, reason, remedy):
    found = judged(slices)
    assert found is not None
    assert reason in found
    assert remedy in found
    assert found.endswith("then measure again with --resume")
    assert "\n" not in found


def test_what_explains_the_rest_comes_first():
    """A machine that swaps scatters as well."""
    scattered = [
        facts(median_s=value, counted={"swapped_mb": 9.0}, foreign_s=0.9) for value in (0.010, 0.014, 0.009, 0.016)
    ]
    assert "swapped" in (judged(scattered) or "")


@pytest.mark.parametrize(
    ("rule", "slices"),
    [
        ("max_foreign_cpu_percent", [facts(foreign_s=0.5)] * 5),
        ("max_clock_change", [facts(clock_mhz=clock) for clock in (3100, 3100, 2400, 2400, 2400)]),
        ("max_temperature_rise_c", [facts(temperature_c=value) for value in (50.0, 60.0, 75.0)]),
        ("max_drift", medians(*np.linspace(0.010, 0.012, 8))),
        ("max_spread", medians(0.010, 0.014, 0.009, 0.016, 0.011)),
    ],
)
def test_every_bound_can_be_set(rule, slices):
    assert judged(slices) is not None
    assert judged(slices, 2, **{rule: math.inf}) is None


def test_clock_ticks_accuse_nobody():
    """A slice of 5 ms can see the whole of a 10 ms tick on each processor."""
    assert judged([facts(wall_s=0.005, cpu_s=0.005, foreign_s=0.02)] * 10) is None


def test_now_and_then_is_not_always():
    """One stray reading of a clock, a few pages moved to disk, a slice that somebody interrupted."""
    assert judged([facts(clock_mhz=3100)] * 9 + [facts(clock_mhz=800)]) is None
    assert judged([facts(counted={"swapped_mb": 0.1})] * 8) is None
    assert judged([facts()] * 8 + [facts(median_s=0.1)]) is None
    assert judged([facts(counted={"gpu_throttled_s": 0.005, "over_current": 40})] * 8) is None
    seldom = {"quota_periods": 200, "quota_throttled": 2}
    assert judged([facts(counted=seldom, quota_processors=2.0)] * 8) is None


def test_the_gpu_counts_where_there_is_one():
    """Processors that only feed a GPU sleep and wake as they like."""
    clocks = (800, 3600, 900, 3500, 800)
    assert judged([facts(clock_mhz=clock, gpu_clock_mhz=1755) for clock in clocks]) is None
    change = clock_change([facts(clock_mhz=3600, gpu_clock_mhz=clock) for clock in clocks])
    assert change is not None
    assert change > 1


def test_clocks_of_two_slices_say_nothing():
    assert clock_change([facts(clock_mhz=800), facts(clock_mhz=3600)]) is None


def test_spread_of_a_known_series():
    assert slice_spread(medians(9.0, 10.0, 11.0)) == pytest.approx(0.14826)


def test_two_slices_have_no_spread():
    assert slice_spread(medians(0.01, 1.0)) is None


def test_the_drift_of_a_known_series():
    assert drift(medians(*(0.01 * 1.02**place for place in range(8)))) == pytest.approx(1.02**7 - 1)
    assert drift(medians(*[0.01] * 8)) is None
    assert drift(medians(*np.linspace(0.010, 0.020, 5))) is None, "five in order say too little"


def test_an_outlier_neither_makes_a_drift_nor_hides_one():
    assert drift(medians(*[0.01] * 9, 0.1)) is None
    trend = [0.01 * 1.02**place for place in range(10)]
    trend[3] = 0.1
    assert drift(medians(*trend)) == pytest.approx(1.02**9 - 1, rel=0.1)


def wander(rng: np.random.Generator, rounds: int, sigma: float, memory: float) -> list[SliceFacts]:
    """Slices that scatter by ``sigma``, each alike the one before as far as ``memory`` says."""
    steps, now, found = rng.normal(0, sigma * math.sqrt(1 - memory**2), rounds), rng.normal(0, sigma), []
    for step in steps:
        now = memory * now + step
        found.append(facts(median_s=0.01 * math.exp(now)))
    return found


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.06])
@pytest.mark.parametrize(("memory", "most"), [(0.0, 0.02), (0.5, 0.04)])
@pytest.mark.parametrize("rounds", [6, 10, 20])
def test_scatter_is_seldom_taken_for_a_drift(sigma, memory, most, rounds):
    rng = np.random.default_rng(5)
    cells = 250
    called = sum(
        "from its first slice" in (judged(wander(rng, rounds, sigma, memory), max_spread=math.inf) or "")
        for _ in range(cells)
    )
    assert called <= most * cells


def test_a_drift_is_seen_through_scatter():
    rng = np.random.default_rng(5)
    trend = np.linspace(0, math.log(1.15), 10)
    seen = sum("slower" in (judged(medians(*0.01 * np.exp(trend + rng.normal(0, 0.01, 10)))) or "") for _ in range(100))
    assert seen >= 95


def test_a_rate_whose_median_latency_is_unknown_has_no_drift() -> None:
    assert drift([SliceFacts(0.0, 1.0)]) is None
