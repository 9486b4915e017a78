"""What samples say: pure functions over durations in slices. docs/explanation/intervals.md derives the formulas.

A slice is an array of durations in nanoseconds; a cell has one slice a round. Repetitions within a slice are alike and
slices drift, so the round is the unit of every interval: what counts is how much rounds differ, however many
repetitions each has. Figures that are ratios (speed-up, RTR, ASE, BSR) are estimated on the logarithmic scale, where a
ratio of estimates is a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlflow_ngraph.estimates import Array, Estimate

Slices = Sequence[Array]
_CAUTION, _MOST_ALIKE, _FEWEST_FREEDOM = 7.0, 0.8, 3.0
"""Of `persistent`: what is added to the autocorrelation, over the rounds, its largest value, and the degrees of freedom that are left."""

TRIMMED, TRIMMED_FROM = 0.2, 8
"""The share of the rounds that a trimmed mean leaves out at either end, and the fewest rounds of which it leaves any out."""


def slice_medians(slices: Slices) -> Array:
    """The median duration of each slice; shape (rounds,)."""
    return np.array([np.median(durations) for durations in slices])


def mean_duration(slices: Slices) -> Estimate:
    """The mean over all repetitions; its error is that of the slices' means, weighted by their repetitions.

    Raises
    ------
    ValueError
        There are no repetitions.
    """
    weights = np.array([durations.size for durations in slices], float)
    if not weights.sum():
        raise ValueError("a mean needs at least one repetition")
    means = np.array([durations.mean() for durations in slices])
    mean = float(weights @ means / weights.sum())
    rounds = len(slices)
    if rounds < 2:
        return _of_one_round(np.log(mean))
    # The variance of a ratio of sums over rounds (time / repetitions), and from there to the logarithm.
    residuals = weights * (means - mean)
    variance = rounds / (rounds - 1) * float(residuals @ residuals) / weights.sum() ** 2
    return _estimate(np.log(mean), np.sqrt(variance) / mean, rounds - 1.0)


def typical(figures: Array) -> Estimate:
    """The trimmed geometric mean of one positive figure a round, such as the median duration of each slice.

    Raises
    ------
    ValueError
        There is none, or one is not positive.
    """
    if figures.size == 0 or not np.all(figures > 0):
        raise ValueError("a typical figure needs at least one round, and positive figures")
    return trimmed_mean(np.log(figures))


def paired_ratio(numerator: Array, denominator: Array) -> Estimate:
    """The trimmed geometric mean over rounds of the ratio of two figures of the same round.

    Left out are the fifth of the rounds with the smallest ratios and the fifth with the largest ones; the error is that
    of Yuen (1974), from the winsorized variance. Of fewer than eight rounds none is left out.

    Parameters
    ----------
    numerator, denominator : Array
        One figure a round, in the same order of rounds; shape (rounds,). What slows a whole round down, slows both and
        leaves the ratio; what slows one of them down once is left out.

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
    """The mean of what is left without the smallest and the largest fifth of the rounds, for many lanes or pairs at once.

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
    return Estimate(np.sort(logs, axis=-1)[..., cut : rounds - cut].mean(axis=-1)[()], error[()], freedom[()])


def persistent(estimate: Estimate, logs: Array) -> Estimate:
    """An absolute figure of a cell beside which the machine was not quiet: what disturbs outlives a round.

    Rounds that follow each other are then alike: their mean scatters more than that of independent ones, and they scatter less
    around it. For an autocorrelation of ``a`` from round to round, ``a ** 2`` from a round to the next but one, and so on, both are
    known (Bayley and Hammersley 1946), of three rounds as of many. ``a`` is estimated without the outer fifths, which one burst
    may fill; its bias of ``- (1 + 4 a) / rounds`` is put right (Marriott and Pope 1954), and ``7 / rounds`` is added, because too
    large an ``a`` does less harm. It is between 0 and 0.8, and three degrees of freedom are left: few rounds cannot tell more.
    Fewer than eight tell nothing of it: it is taken to be 0.8. `benchmarks/interval_coverage.py` counts.

    Parameters
    ----------
    estimate : Estimate
        As from independent rounds.
    logs : Array
        What the figure was estimated from, one logarithm a round in the order of time; shape (rounds,).
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
    """How many times as large as the usual one the standard error of a mean of rounds is that follow each other alike."""
    apart = 1 - alike
    of_mean = ((1 + alike) / apart - 2 * alike * (1 - alike**rounds) / (rounds * apart**2)) / rounds
    return float(np.sqrt((rounds - 1) * of_mean / (1 - of_mean)))


def trimmed(rounds: int) -> int:
    """How many rounds a trimmed mean leaves out at either end."""
    return int(TRIMMED * rounds) if rounds >= TRIMMED_FROM else 0


def _winsorized(logs: Array) -> Array:
    """The logarithms with what a trimmed mean leaves out set to the nearest of what it keeps."""
    cut = trimmed(logs.shape[-1])
    ordered = np.sort(logs, axis=-1)
    return np.clip(logs, ordered[..., [cut]], ordered[..., [-1 - cut]])


def _of_one_round(log: float) -> Estimate:
    """One round says nothing about the next."""
    return _estimate(log, np.nan, np.nan)


def _estimate(log: float, error: float, freedom: float) -> Estimate:
    return Estimate(*(np.asarray(part, float)[()] for part in (log, error, freedom)))
