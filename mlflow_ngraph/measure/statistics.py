"""What samples say: pure functions over durations in slices.

A slice is an array of durations in nanoseconds; a cell has one slice a round. Repetitions within a slice
are alike and the slices drift, so every interval resamples the slices and then the repetitions inside
them (a two-stage bootstrap): resampling single repetitions would call drift precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Slices = Sequence[NDArray[np.float64]]

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float


def interval(replicates: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval of bootstrap replicates."""
    tail = (1 - level) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return float(low), float(high)


def resample(slices: Slices, rng: np.random.Generator) -> Slices:
    """One draw of slices, with replacement, and of repetitions inside each."""
    picks = rng.integers(0, len(slices), len(slices))
    return [_again(slices[index], rng) for index in picks]


def mean_duration_replicates(slices: Slices, rng: np.random.Generator, count: int = RESAMPLES) -> NDArray[np.float64]:
    """Bootstrap replicates of the mean duration in ns; shape (count,)."""
    return np.array([np.concatenate(resample(slices, rng)).mean() for _ in range(count)])


def median_duration_replicates(slices: Slices, rng: np.random.Generator, count: int = RESAMPLES) -> NDArray[np.float64]:
    """Bootstrap replicates of the median duration in ns; shape (count,)."""
    return np.array([np.median(np.concatenate(resample(slices, rng))) for _ in range(count)])


def paired_ratio(numerator: Slices, denominator: Slices, rng: np.random.Generator, count: int = RESAMPLES) -> Estimate:
    """The median over rounds of the ratio of slice medians, with its interval.

    Parameters
    ----------
    numerator, denominator: slices of the same rounds, in the same order. What slows a whole round down, slows
        both and leaves the ratio.

    Raises
    ------
    ValueError: no rounds, or different numbers of them.
    """
    if not numerator or len(numerator) != len(denominator):
        raise ValueError("a paired ratio needs the same rounds on both sides, and at least one")
    value = float(np.median(_medians(numerator) / _medians(denominator)))
    rounds = len(numerator)
    picks = rng.integers(0, rounds, (rounds, count))
    top, bottom = _median_replicates(numerator, rng, count), _median_replicates(denominator, rng, count)
    columns = np.arange(count)
    low, high = interval(np.median(top[picks, columns] / bottom[picks, columns], axis=0))
    return Estimate(value, min(low, value), max(high, value))


def _median_replicates(slices: Slices, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Medians of resampled repetitions, slice by slice; shape (slices, count)."""
    return np.array([np.median(part[rng.integers(0, part.size, (count, part.size))], axis=1) for part in slices])


def _again(durations: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return durations[rng.integers(0, durations.size, durations.size)]


def _medians(slices: Slices) -> NDArray[np.float64]:
    return np.array([np.median(durations) for durations in slices])
