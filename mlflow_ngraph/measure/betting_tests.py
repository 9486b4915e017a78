"""Bets against the hypothesis that the differences between two lanes, in rounds that both share, lie around some centre or above.

While the hypothesis is true, what is staked is not expected to grow, whenever one looks at it (an e-process): so it ever
becomes a hundredfold in at most one of a hundred cases (Ville 1939), however often one looks. Differences are those of
logarithms. docs/explanation/races.md derives the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from scipy import special

from mlflow_ngraph.estimates import Array

CAP = 5.0
"""How many times what is staked on `_gaussian` may grow with each round."""
LARGEST_NOISE = 0.5
"""What a slice is off by, in logarithms and as a standard deviation, on the most restless machine: 0.5 is a factor of 1.6."""
LARGEST_COUNTED = 1.5
"""What one round may say to `_bounded`, a factor of 4.5: one slice that was held up for however long removes no cell."""
LARGE_EFFECT = 4.0
"""What `_bounded` bets on: differences of about so many times the largest noise."""
EFFECTS = np.array([0.5, 2.0, 8.0, 32.0])
"""What `_gaussian` bets on: differences of about so many times the noise, whatever that is."""
NOISES = np.geomspace(0.002, 1.0, 18)
"""Standard deviations of the differences, in logarithms, that `_gaussian` thinks of."""
STAKES = np.array([0.2, 0.45, 0.7, 0.95])
"""Shares of what it has that `_symmetric` bets on the sign of the next difference."""
QUARTER = 0.3186
"""A quarter of a normal distribution lies nearer to its centre than so many standard deviations."""
FIRST_SCALE, SMALLEST_SCALE = 0.03, 0.002
"""The scatter of differences before three of them tell it, and the least that is believed."""


def log_evidence(differences: Array, at_best: Array, centre: float, scales: Array | None = None) -> float:
    """The logarithm of what a stake of 1 has become against the hypothesis that differences lie around ``centre`` or above.

    A third is staked on each of three ways in which they may lie below it. Their sum is what counts: each grows where its
    own view of the noise is right, and none is expected to while the hypothesis is true.

    Parameters
    ----------
    differences : Array
        One a round, in the order of rounds.
    at_best : Array
        The same with the best that the first cell ever did in place of what it did in the round: never below them.
    centre : float
        Of the hypothesis.
    scales : Array | None
        The scatter of the differences before each of them, where it is known.
    """
    if not differences.size:
        return 0.0
    if scales is None:
        scales = np.array([scale(differences[:place]) for place in range(differences.size)])
    below = differences - centre
    bets = (
        _symmetric(below, scales),
        min(_gaussian(below), differences.size * math.log(CAP)),
        _bounded(np.maximum(below, at_best - centre)),
    )
    return _log_mean(np.array(bets))


def _symmetric(below: Array, scales: Array) -> float:
    """For noise that is symmetric, however long its tails: a bet on each sign, smaller where the difference is small.

    With ``f`` odd and at most 1, the mean of ``1 + f(x)`` over a symmetric ``x`` is 1 (Vovk and Wang, arXiv 2208.08925).
    """
    signs = np.tanh(below / scales)
    wealth = np.log1p(-STAKES[:, None] * signs).sum(axis=1)
    return _log_mean(wealth)


def scale(before: Sequence[float] | Array) -> float:
    """The scatter of the differences before a round: what is staked on it may not depend on it.

    By the quarter of them that lie next to their median, which says how they scatter in rounds that nobody disturbed.
    """
    if len(before) < 3:
        return FIRST_SCALE
    middle = median(before)
    distances = sorted(abs(difference - middle) for difference in before)
    return max(float(distances[len(distances) // 4]) / QUARTER, SMALLEST_SCALE)


def log_sum(logs: Array) -> float:
    """The logarithm of the sum of what has these logarithms."""
    largest = float(logs.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(logs - largest).sum()))


def _log_mean(logs: Array) -> float:
    return log_sum(logs) - math.log(logs.size)


def _gaussian(below: Array) -> float:
    """For normal noise of unknown size: the likelihood of differences below, over the largest one that allows for none.

    Whatever weighs the alternatives, that quotient is an e-process (Wasserman, Ramdas and Balakrishnan 2020; Wang and
    Ramdas, arXiv 2310.03722).
    """
    count, total, squares = below.size, float(below.sum()), float(below @ below)
    # The most likely noise of the hypothesis; its centre is where it is least wrong.
    variance = (squares - (total**2 / count if total > 0 else 0.0)) / count
    if variance <= 0:
        return -math.inf
    likelihoods = -count * np.log(NOISES) - squares / (2 * NOISES**2)
    grown = _mixture(-total / NOISES[:, None], count, EFFECTS[None, :])
    alternatives = _log_mean(likelihoods[:, None] + grown)
    return alternatives + count * (math.log(variance) + 1) / 2


def _bounded(below: Array) -> float:
    """For noise that is never larger than `LARGEST_NOISE`, whatever its shape: a factor of five needs two rounds.

    It gets the differences at the best that the cell ever did. A machine that stalls makes inferences a hundred times longer,
    and more than one round may see nothing else; but what disturbs makes nothing faster.
    """
    score = np.array(-np.maximum(below, -LARGEST_COUNTED).sum() / LARGEST_NOISE)
    return float(_mixture(score, below.size, np.array(LARGE_EFFECT)))


def _mixture(scores: Array, count: int, effects: Array) -> Array:
    """The logarithm of ``exp(d s - n d² / 2)``, averaged over ``d`` from half a normal distribution of width ``effects``.

    Parameters
    ----------
    scores : Array
        Sums of ``count`` differences in units of their standard deviation: ``s``.
    effects : Array
        Differences that are bet on, in the same units.
    """
    precision = count + 1 / effects**2
    reduced = scores / np.sqrt(precision)
    mixture: Array = math.log(2) - np.log1p(count * effects**2) / 2 + reduced**2 / 2 + special.log_ndtr(reduced)
    return mixture
