"""How often the 95 % intervals contain the truth, on synthetic samples whose truth is known.

``python benchmarks/coverage.py [--trials 1000]`` draws studies of two lanes at two batch sizes and three depths with
ten rounds of ten repetitions, derives every figure with the package's own code, and counts. All noises contain a drift
of 5 % that a round's lanes share and 1 % that they do not.

Then the same for cells that stop by themselves (``repetitions: auto``): rounds of five until the interval of the throughput
is within ± 1 %, at least eight rounds and at most forty. Stopping when an interval is short favours short ones, and a cell
that stops early may not have seen what is rare, so these are counted and not held to the bar.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from support.drawn_study import derived

from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.study_settings import Adaptive
from mlflow_ngraph_report import combined

ROUNDS, REPETITIONS, GAP = 10, 10, 40
MOST_ROUNDS, SHORT_SLICE = 40, 5
STOPPING = ", auto"
BATCHES, DEPTHS = (1, 8), (1, 3, 6)
DURATION_MS = {("identity", 1): 10.0, ("identity", 8): 64.0, ("fast", 1): 8.0, ("fast", 8): 40.0}
SPEEDUPS = {1: 2.0, 3: 1.6, 6: 1.4}
TOLERATED = (0.93, 0.97)

Noise = Callable[[np.random.Generator, int, int], NDArray[np.float64]]
"""Draws factors of mean and median 1, or with a common median; shape (rounds, repetitions)."""


def independent(rng: np.random.Generator, rounds: int, repetitions: int) -> NDArray[np.float64]:
    """Every repetition by itself, 3 %."""
    return 1 + 0.03 * rng.standard_normal((rounds, repetitions))


def autocorrelated(rng: np.random.Generator, rounds: int, repetitions: int) -> NDArray[np.float64]:
    """Neighbouring repetitions alike (0.9); other lanes run between two slices of a lane."""
    total = (repetitions + GAP) * rounds
    shocks = rng.standard_normal(total) * np.sqrt(1 - 0.9**2)
    walk = np.empty(total)
    walk[0] = rng.standard_normal()
    for index in range(1, total):
        walk[index] = 0.9 * walk[index - 1] + shocks[index]
    return 1 + 0.03 * walk.reshape(rounds, repetitions + GAP)[:, :repetitions]


def skewed(rng: np.random.Generator, rounds: int, repetitions: int) -> NDArray[np.float64]:
    """Never faster than a floor, often a little slower, now and then by half."""
    slower = rng.exponential(0.05, (rounds, repetitions))
    spikes = (rng.random((rounds, repetitions)) < 0.02) * rng.exponential(0.5, (rounds, repetitions))
    return (1 + slower + spikes) / (1 + 0.05 + 0.02 * 0.5)


def main() -> int:
    """Count, print, and fail if a figure is not covered as claimed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    failed = False
    for noise in (independent, autocorrelated, skewed):
        hits: dict[str, int] = {}
        for seed in range(trials):
            rng = np.random.default_rng([seed, 1])
            for name, hit in {**_trial(noise, rng), **_stopping_trial(noise, rng)}.items():
                hits[name] = hits.get(name, 0) + hit
        for name, count in hits.items():
            share = count / trials
            inside = TOLERATED[0] <= share <= TOLERATED[1] or name.endswith(STOPPING)
            failed |= not inside
            print(f"{noise.__name__:15} {name:18} {100 * share:5.1f} %{'' if inside else '   outside 93 to 97 %'}")
    return int(failed)


def _trial(noise: Noise, rng: np.random.Generator) -> dict[str, bool]:
    """Which intervals of one drawn study contain the truth."""
    drawn = {}
    for batch in BATCHES:
        drift = 1 + 0.05 * rng.standard_normal(ROUNDS)
        for name in ("identity", "fast"):
            drawn["w", name, batch] = _durations(noise, rng, drift, DURATION_MS[name, batch])
    lanes = derived(drawn).lanes
    speedup = {batch: DURATION_MS["identity", batch] / DURATION_MS["fast", batch] for batch in BATCHES}
    rtr = 8 * DURATION_MS["fast", 1] / DURATION_MS["fast", 8]
    found = lanes["w-fast"].cells[8].metrics
    truths = {
        "throughput": 8e3 / DURATION_MS["fast", 8] / _typical(noise),
        "throughput_mean": 8e3 / DURATION_MS["fast", 8],
        "speedup": speedup[8],
        "rtr": rtr,
        "ase": rtr / 8,
        "bsr": speedup[8] / speedup[1],
    }
    covered = {name: found[f"{name}_ci_low"] <= truth <= found[f"{name}_ci_high"] for name, truth in truths.items()}
    return {**covered, **_over_depth(noise, rng)}


def _over_depth(noise: Noise, rng: np.random.Generator) -> dict[str, bool]:
    """Slope and retention of speed-ups at several depths."""
    found = {}
    for depth, truth in SPEEDUPS.items():
        drift = 1 + 0.05 * rng.standard_normal(ROUNDS)
        slow, fast = (
            statistics.slice_medians(list(_durations(noise, rng, drift, level))) for level in (10.0, 10.0 / truth)
        )
        found[depth] = statistics.paired_ratio(slow, fast)
    parts = Estimate(
        *(np.array([getattr(found[depth], name) for depth in DEPTHS]) for name in ("log", "error", "freedom"))
    )
    slope, retention = combined.slope(DEPTHS, parts), combined.retention(DEPTHS, parts)
    assert retention is not None
    truths = [SPEEDUPS[depth] for depth in DEPTHS]
    return {
        "slope": _contains((slope.low, slope.high), float(np.polyfit(DEPTHS, truths, 1)[0])),
        "retention": _contains((retention.low, retention.high), truths[-1] / truths[0]),
    }


def _stopping_trial(noise: Noise, rng: np.random.Generator) -> dict[str, bool]:
    """Whether the interval of a lane that stops by itself contains the truth; all of its noise is its own."""
    rule = Adaptive()
    own = 1 + 0.015 * rng.standard_normal((MOST_ROUNDS, 1))
    durations = list(10.0 * own * noise(rng, MOST_ROUNDS, SHORT_SLICE))
    baseline = list(20.0 * (1 + 0.015 * rng.standard_normal((MOST_ROUNDS, 1))) * noise(rng, MOST_ROUNDS, SHORT_SLICE))
    for rounds in range(rule.min_rounds, MOST_ROUNDS + 1):
        duration = statistics.typical(statistics.slice_medians(durations[:rounds]))
        if duration.reach() <= rule.within:
            break
    medians = (statistics.slice_medians(slices[:rounds]) for slices in (baseline, durations))
    return {
        f"throughput{STOPPING}": _contains(duration.interval(), 10.0 * _typical(noise, SHORT_SLICE)),
        f"speedup{STOPPING}": _contains(statistics.paired_ratio(*medians).interval(), 2.0),
    }


@cache
def _typical(noise: Noise, repetitions: int = REPETITIONS) -> float:
    """What the median of a slice is in a round like most, as a factor of the level."""
    medians = np.median(noise(np.random.default_rng(0), 20_000, repetitions), axis=1)
    return float(statistics.typical(medians).value)


def _durations(
    noise: Noise, rng: np.random.Generator, drift: NDArray[np.float64], level_ms: float
) -> NDArray[np.float64]:
    own = 1 + 0.01 * rng.standard_normal((ROUNDS, 1))
    return level_ms * 1e6 * drift[:, None] * own * noise(rng, ROUNDS, REPETITIONS)


def _contains(ends: tuple[ArrayLike, ArrayLike], truth: float) -> bool:
    low, high = ends
    return bool(np.all(np.less_equal(low, truth)) and np.all(np.less_equal(truth, high)))


if __name__ == "__main__":
    raise SystemExit(main())
