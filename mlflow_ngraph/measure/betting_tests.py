"""Evidence that one cell trails another, from differences in shared rounds: bets that are valid at any time.

Under the hypothesis that differences lie around a centre or above, the wealth of a bet does not grow in expectation (an
e-process). It reaches a hundredfold in at most one of a hundred cases (Ville 1939), however often it is checked.
Differences are those of logarithms. docs/explanation/races.md derives the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from scipy import special

from mlflow_ngraph.estimates import Array

CAP = 5.0
"""Largest growth of the wealth on `_gaussian` per round."""
LARGEST_NOISE = 0.5
"""Noise of a slice on the noisiest machine, as a standard deviation of logarithms: 0.5 is a factor of 1.6."""
LARGEST_COUNTED = 1.5
"""Largest effect of a round on `_bounded`, a factor of 4.5: a single stalled slice removes no cell."""
LARGE_EFFECT = 4.0
"""Effect size that `_bounded` bets on, in units of the largest noise."""
EFFECTS = np.array([0.5, 2.0, 8.0, 32.0])
"""Effect sizes that `_gaussian` bets on, in units of the unknown noise."""
NOISES = np.geomspace(0.002, 1.0, 18)
"""Standard deviations of the differences that `_gaussian` averages over, in logarithms."""
STAKES = np.array([0.2, 0.45, 0.7, 0.95])
"""Fractions of its wealth that `_symmetric` bets on the sign of the next difference."""
QUARTER = 0.3186
"""Distance from the centre of a normal distribution that contains a quarter of it, in standard deviations."""
FIRST_SCALE, SMALLEST_SCALE = 0.03, 0.002
"""Scale of the differences before there are three, and its lower bound."""


def log_evidence(differences: Array, at_best: Array, centre: float, scales: Array | None = None) -> float:
    """Logarithm of the wealth of a bet of 1 against differences around ``centre`` or above.

    A third is bet on each of three models of the noise. The sum counts: each grows under its own model, and none is
    expected to under the hypothesis.

    Parameters
    ----------
    differences : Array
        One a round, in the order of rounds.
    at_best : Array
        The same with the best result of the first cell in place of its result in the round: never below them.
    centre : float
        Centre of the hypothesis.
    scales : Array | None
        Scale of the differences before each of them, if known.
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
    """Bet for symmetric noise of any tail, on each sign; less on small differences.

    With ``f`` odd and at most 1, the mean of ``1 + f(x)`` over a symmetric ``x`` is 1 (Vovk and Wang, arXiv
    2208.08925).
    """
    signs = np.tanh(below / scales)
    wealth = np.log1p(-STAKES[:, None] * signs).sum(axis=1)
    return _log_mean(wealth)


def scale(before: Sequence[float] | Array) -> float:
    """Scale of the differences before a round, on which its bet may not depend.

    It uses the quarter of them nearest to their median, which reflects undisturbed rounds.
    """
    if len(before) < 3:
        return FIRST_SCALE
    middle = median(before)
    distances = sorted(abs(difference - middle) for difference in before)
    return max(float(distances[len(distances) // 4]) / QUARTER, SMALLEST_SCALE)


def log_sum(logs: Array) -> float:
    """Logarithm of a sum, from the logarithms of its terms."""
    largest = float(logs.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(logs - largest).sum()))


def _log_mean(logs: Array) -> float:
    return log_sum(logs) - math.log(logs.size)


def _gaussian(below: Array) -> float:
    """Bet for normal noise of unknown size: the likelihood of differences below over the largest one of the hypothesis.

    The quotient is an e-process for any weights of the alternatives (Wasserman, Ramdas and Balakrishnan 2020; Wang and
    Ramdas, arXiv 2310.03722).
    """
    count, total, squares = below.size, float(below.sum()), float(below @ below)
    # The most likely noise of the hypothesis; its centre is at its best fit.
    variance = (squares - (total**2 / count if total > 0 else 0.0)) / count
    if variance <= 0:
        return -math.inf
    likelihoods = -count * np.log(NOISES) - squares / (2 * NOISES**2)
    grown = _mixture(-total / NOISES[:, None], count, EFFECTS[None, :])
    alternatives = _log_mean(likelihoods[:, None] + grown)
    return alternatives + count * (math.log(variance) + 1) / 2


def _bounded(below: Array) -> float:
    """Bet for noise of any shape up to `LARGEST_NOISE`: a factor of five needs two rounds.

    It takes the differences at the cell's best result. A stalling machine makes inferences a hundred times longer,
    perhaps in several rounds; but no disturbance makes them faster.
    """
    score = np.array(-np.maximum(below, -LARGEST_COUNTED).sum() / LARGEST_NOISE)
    return float(_mixture(score, below.size, np.array(LARGE_EFFECT)))


def _mixture(scores: Array, count: int, effects: Array) -> Array:
    """Logarithm of ``exp(d s - n d² / 2)``, averaged over ``d`` from half a normal distribution of width ``effects``.

    Parameters
    ----------
    scores : Array
        Sums of ``count`` differences in units of their standard deviation: ``s``.
    effects : Array
        Effect sizes to bet on, in the same units.
    """
    precision = count + 1 / effects**2
    reduced = scores / np.sqrt(precision)
    mixture: Array = math.log(2) - np.log1p(count * effects**2) / 2 + reduced**2 / 2 + special.log_ndtr(reduced)
    return mixture
