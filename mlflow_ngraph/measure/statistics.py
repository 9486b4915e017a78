"""Estimates from the durations of slices, as pure functions. docs/explanation/intervals.md derives the formulas.

A slice is an array of durations in nanoseconds; a cell has one slice a round. Repetitions within a slice are alike and
slices drift, so the round is the unit of every interval: it reflects the differences between rounds, whatever their
repetitions. Ratios (speed-up, RTR, ASE, BSR) are estimated on the logarithmic scale, where a ratio of estimates is a
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_ngraph.estimates import Array, Estimate

Slices = Sequence[Array]
_CAUTION, _MOST_ALIKE, _FEWEST_FREEDOM = 7.0, 0.8, 3.0
"""Constants of `persistent`: the term added to the autocorrelation, over the rounds; its upper bound; and the least
degrees of freedom."""

TRIMMED, TRIMMED_FROM = 0.2, 8
"""Fraction of the rounds that a trimmed mean drops at either end, and the fewest rounds from which it drops any."""


def slice_medians(slices: Slices) -> Array:
    """Median duration of each slice; shape (rounds,)."""
    return np.array([np.median(durations) for durations in slices])


def mean_duration(slices: Slices) -> Estimate:
    """Mean over all repetitions, with the error of the slices' means weighted by repetitions.

    Raises
    ------
    ValueError
        There are no repetitions.
    """
    weights = np.array([durations.size for durations in slices])
    if not weights.sum():
        raise ValueError("a mean needs at least one repetition")
    means = np.array([durations.mean() for durations in slices])
    mean = float(weights @ means / weights.sum())
    rounds = len(slices)
    if rounds < 2:
        return _estimate(np.log(mean), np.nan, np.nan)  # one round tells nothing about the next
    # The variance of a ratio of sums over rounds (time / repetitions), then that of its logarithm.
    residuals = weights * (means - mean)
    variance = rounds / (rounds - 1) * float(residuals @ residuals) / weights.sum() ** 2
    return _estimate(np.log(mean), np.sqrt(variance) / mean, rounds - 1.0)


def typical(figures: Array) -> Estimate:
    """Trimmed geometric mean of one positive figure a round, such as the median duration of each slice.

    Raises
    ------
    ValueError
        There is none, or one is not positive.
    """
    if figures.size == 0 or not np.all(figures > 0):
        raise ValueError("a typical figure needs at least one round, and positive figures")
    return trimmed_mean(np.log(figures))


def paired_ratio(numerator: Array, denominator: Array) -> Estimate:
    """Trimmed geometric mean over rounds of the ratio of two figures of the same round.

    The fifths of the rounds with the smallest and the largest ratios are dropped; the error is that of Yuen (1974),
    from the winsorized variance. Fewer than eight rounds are all kept.

    Parameters
    ----------
    numerator, denominator : Array
        One figure a round, in the same order; shape (rounds,). A disturbance of a whole round cancels; one of a single
        cell is dropped.

    Raises
    ------
    ValueError
        No rounds, or different numbers of them, or a figure that is not positive.
    """
    if numerator.shape != denominator.shape:
        raise ValueError("a paired ratio needs the same rounds on both sides, and at least one")
    if numerator.size == 0 or not (np.all(numerator > 0) and np.all(denominator > 0)):
        raise ValueError("a paired ratio needs at least one round, and positive figures")
    return trimmed_mean(np.log(numerator / denominator))


def trimmed_mean(logs: Array) -> Estimate:
    """Mean without the smallest and the largest fifth of the rounds, for many lanes or pairs at once.

    Parameters
    ----------
    logs : Array
        Logarithms of durations or of ratios, one a round along the last axis; shape (..., rounds).
    """
    rounds = logs.shape[-1]
    if rounds < 2:
        nothing = np.full(logs.shape[:-1], np.nan)
        return Estimate(logs.mean(axis=-1), nothing, nothing)
    cut = trimmed(rounds)
    kept = rounds - 2 * cut
    error = _winsorized(logs).std(axis=-1, ddof=1) * np.sqrt((rounds - 1) / (kept * (kept - 1)))
    freedom = np.full(logs.shape[:-1], kept - 1.0)
    return Estimate(np.sort(logs)[..., cut : rounds - cut].mean(axis=-1)[()], error[()], freedom[()])


def persistent(estimate: Estimate, logs: Array) -> Estimate:
    """Widen the interval of an absolute figure on a noisy machine, where disturbances outlast a round.

    Successive rounds are then alike: their mean scatters more than that of independent ones, and they scatter less
    around it. For an autocorrelation of ``a`` between neighbours, ``a ** 2`` at distance two, and so on, both are known
    (Bayley and Hammersley 1946) for any number of rounds. ``a`` is estimated without the outer fifths, which one burst
    may fill; its bias of ``- (1 + 4 a) / rounds`` is corrected (Marriott and Pope 1954), and ``7 / rounds`` is added,
    because too large an ``a`` does less harm. It lies between 0 and 0.8, and three degrees of freedom remain at least:
    few rounds cannot tell more. Fewer than eight tell nothing: 0.8 is assumed. `benchmarks/interval_coverage.py`
    measures the coverage.

    Parameters
    ----------
    estimate : Estimate
        As from independent rounds.
    logs : Array
        Logarithms that the figure was estimated from, one a round in the order of time; shape (rounds,).
    """
    rounds = logs.size
    if rounds < 2:
        return estimate
    if rounds < TRIMMED_FROM:
        return replace(estimate, error=estimate.error * _inflation(_MOST_ALIKE, rounds))
    centred = _winsorized(logs) - _winsorized(logs).mean()
    scatter = float(centred @ centred)
    raw = float(centred[1:] @ centred[:-1]) / scatter if scatter else 0.0
    alike = min(max((rounds * raw + 1) / (rounds - 4) + _CAUTION / rounds, 0.0), _MOST_ALIKE)
    freedom = np.maximum(estimate.freedom * (1 - alike) / (1 + alike), _FEWEST_FREEDOM)
    return Estimate(estimate.log, estimate.error * _inflation(alike, rounds), freedom)


def _inflation(alike: float, rounds: int) -> float:
    """Factor on the standard error of a mean of autocorrelated rounds."""
    apart = 1 - alike
    of_mean = ((1 + alike) / apart - 2 * alike * (1 - alike**rounds) / (rounds * apart**2)) / rounds
    return float(np.sqrt((rounds - 1) * of_mean / (1 - of_mean)))


def trimmed(rounds: int) -> int:
    """Number of rounds that a trimmed mean drops at either end."""
    return int(TRIMMED * rounds) if rounds >= TRIMMED_FROM else 0


def _winsorized(logs: Array) -> Array:
    """Logarithms with the dropped ones set to the nearest kept one."""
    cut = trimmed(logs.shape[-1])
    ordered = np.sort(logs)
    return np.clip(logs, ordered[..., [cut]], ordered[..., [-1 - cut]])


def _estimate(log: float, error: float, freedom: float) -> Estimate:
    return Estimate(*np.array([log, error, freedom]))
