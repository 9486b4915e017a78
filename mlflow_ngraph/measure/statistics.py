"""What samples say: pure functions over durations in slices. docs/method.md derives the formulas.

A slice is an array of durations in nanoseconds; a cell has one slice a round. Repetitions within a slice are alike and
slices drift, so the round is the unit of every interval: what counts is how much rounds differ, however many
repetitions each has. Figures that are ratios (speed-up, RTR, ASE, BSR) are estimated on the logarithmic scale, where a
ratio of estimates is a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Slices = Sequence[NDArray[np.float64]]
Array = NDArray[np.float64]

LEVEL = 0.95
"""Of every interval that this package reports."""
TRIMMED, TRIMMED_FROM = 0.2, 8
"""The share of the rounds that a paired ratio leaves out at either end, and the fewest rounds of which it leaves any out."""


@dataclass(frozen=True)
class Estimate:
    """A positive figure with the uncertainty of its logarithm."""

    log: float
    """Natural logarithm of the figure."""
    error: float
    """Standard error of ``log``."""
    freedom: float
    """Degrees of freedom of ``error``; 0 where there is only one round, and therefore no interval."""

    @property
    def value(self) -> float:
        """The figure."""
        return float(np.exp(self.log))

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """The ends of the confidence interval (Student's t), or None: one round says nothing about the next."""
        if self.freedom <= 0:
            return None
        reach = float(quantile(self.freedom, level)) * self.error
        return float(np.exp(self.log - reach)), float(np.exp(self.log + reach))

    def reach(self, level: float = LEVEL) -> float | None:
        """How far the upper end of the interval lies from the figure, as a share of it; None without an interval."""
        ends = self.interval(level)
        return None if ends is None else ends[1] / self.value - 1

    def times(self, factor: float) -> Estimate:
        """The figure multiplied by an exact, positive number."""
        return replace(self, log=self.log + float(np.log(factor)))


def slice_medians(slices: Slices) -> Array:
    """The median duration of each slice; shape (rounds,)."""
    return np.array([np.median(durations) for durations in slices])


def mean_duration(slices: Slices) -> Estimate:
    """The mean over all repetitions; its error is that of the slices' means, weighted by their repetitions.

    Raises
    ------
    ValueError: there are no repetitions.
    """
    weights = np.array([durations.size for durations in slices], float)
    if not weights.sum():
        raise ValueError("a mean needs at least one repetition")
    means = np.array([durations.mean() for durations in slices])
    mean = float(weights @ means / weights.sum())
    rounds = len(slices)
    if rounds < 2:
        return Estimate(float(np.log(mean)), 0.0, 0.0)
    # The variance of a ratio of sums over rounds (time / repetitions), and from there to the logarithm.
    residuals = weights * (means - mean)
    variance = rounds / (rounds - 1) * float(residuals @ residuals) / weights.sum() ** 2
    return Estimate(float(np.log(mean)), float(np.sqrt(variance)) / mean, rounds - 1.0)


def geometric_mean(values: Array) -> Estimate:
    """The geometric mean of one positive figure a round, such as the median duration of each slice.

    Raises
    ------
    ValueError: there is none, or one is not positive.
    """
    if values.size == 0 or not np.all(values > 0):
        raise ValueError("a geometric mean needs at least one figure, all of them positive")
    logs = np.log(values)
    if logs.size < 2:
        return Estimate(float(logs.mean()), 0.0, 0.0)
    return Estimate(float(logs.mean()), float(logs.std(ddof=1)) / float(np.sqrt(logs.size)), logs.size - 1.0)


def paired_ratio(numerator: Array, denominator: Array) -> Estimate:
    """The trimmed geometric mean over rounds of the ratio of two figures of the same round.

    Left out are the fifth of the rounds with the smallest ratios and the fifth with the largest ones; the error is that
    of Yuen (1974), from the winsorized variance. Of fewer than eight rounds none is left out.

    Parameters
    ----------
    numerator, denominator: one figure a round, in the same order of rounds; shape (rounds,). What slows a whole
        round down, slows both and leaves the ratio; what slows one of them down once is left out.

    Raises
    ------
    ValueError: no rounds, or different numbers of them, or a figure that is not positive.
    """
    if numerator.shape != denominator.shape:
        raise ValueError("a paired ratio needs the same rounds on both sides, and at least one")
    cut = trimmed(numerator.size)
    if cut == 0:
        return geometric_mean(numerator / denominator)
    logs = np.sort(np.log(numerator / denominator))
    kept = logs.size - 2 * cut
    spread = float(np.clip(logs, logs[cut], logs[-cut - 1]).std(ddof=1))
    error = spread * float(np.sqrt((logs.size - 1) / (kept * (kept - 1))))
    return Estimate(float(logs[cut:-cut].mean()), error, kept - 1.0)


def trimmed(rounds: int) -> int:
    """How many rounds a paired ratio leaves out at either end."""
    return int(TRIMMED * rounds) if rounds >= TRIMMED_FROM else 0


def ratio(numerator: Estimate, denominator: Estimate) -> Estimate:
    """The ratio of two figures that were measured in different rounds (Welch and Satterthwaite)."""
    parts = [(numerator.error**2, numerator.freedom), (denominator.error**2, denominator.freedom)]
    return Estimate(numerator.log - denominator.log, float(np.sqrt(sum(v for v, _ in parts))), _freedom(parts))


def weighted_sum(weights: Sequence[float], estimates: Sequence[Estimate]) -> tuple[float, tuple[float, float] | None]:
    """A linear combination of independent figures, such as a slope over depth, with its interval.

    The error of a figure is its value times the error of its logarithm.
    """
    value = sum(weight * one.value for weight, one in zip(weights, estimates, strict=True))
    parts = [
        ((weight * one.value * one.error) ** 2, one.freedom) for weight, one in zip(weights, estimates, strict=True)
    ]
    freedom = _freedom(parts)
    if freedom <= 0:
        return value, None
    reach = float(quantile(freedom)) * float(np.sqrt(sum(variance for variance, _ in parts)))
    return value, (value - reach, value + reach)


def quantile(freedom: ArrayLike, level: float = LEVEL) -> Array:
    """How many standard errors an interval of Student reaches to either side; NaN where the freedom is NaN."""
    known = np.asarray(freedom, float)
    # scipy.stats has the same in one call, but importing it takes longer than most questions about results.
    with np.errstate(invalid="ignore"):
        student = special.stdtrit(np.where(np.isfinite(known), known, 1.0), (1 + level) / 2)
    found: Array = np.where(np.isposinf(known), special.ndtri((1 + level) / 2), student)
    return np.where(np.isnan(known), np.nan, found)


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances, each with its own; 0 if one of them has none."""
    if any(freedom <= 0 for _, freedom in parts):
        return 0.0
    total = sum(variance for variance, _ in parts)
    if total == 0:
        return min(freedom for _, freedom in parts)
    return float(total**2 / sum(variance**2 / freedom for variance, freedom in parts))
