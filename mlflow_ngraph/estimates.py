"""Estimated figures with their errors: ratios, means, sums and tests. docs/explanation/comparing.md has the formulas.

Figures are positive, and errors are those of their logarithms: a ratio of figures is a difference there. Everything
works on arrays, because a large table has thousands of comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.95
"""Confidence level of every reported interval."""
ALPHA = 0.05
"""p-value below which something differs, and from which on it is not told apart: of a whole family of comparisons."""
WIDEST = 10.0
"""Largest ratio of an interval's ends. A wider one says nothing about the size, and is left out."""

UNEVEN = 0.4
"""Standard error of the logarithm of a ratio of two engines that was measured beside other load, from study to study, as a
multiple of the share of the machine that the load took (`right_decisions` in docs/verification.md). It was measured beside
load on half of the machine; beyond, the multiple is of half of what the load took over what it left."""
_MOST_LOAD = 0.95
"""Largest share of the machine that counts: something was measured beside it."""


@dataclass(frozen=True)
class Estimate:
    """Positive figures with the standard errors of their logarithms, as arrays of equal shape (also 0-d)."""

    log: Array
    """Natural logarithms of the figures."""
    error: Array
    """Standard errors of ``log``; NaN where there is no interval."""
    freedom: Array
    """Degrees of freedom of ``error``; NaN where there is no interval, infinite where a figure is known exactly."""

    @cached_property
    def value(self) -> Array:
        return np.exp(self.log)

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """Ends of the intervals, however wide, for decisions."""
        reach = quantile(self.freedom) * self.error
        with np.errstate(over="ignore"):  # beyond all numbers: infinite, as it should be
            return np.exp(self.log - reach), np.exp(self.log + reach)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Mask of figures that have an error: one round says nothing about the next."""
        return np.isfinite(self.error)

    @property
    def far(self) -> NDArray[np.bool_]:
        """Mask of figures so far from 1 that it is in no interval around them that is narrow enough to be shown."""
        with np.errstate(invalid="ignore"):
            apart: NDArray[np.bool_] = np.abs(self.log) > np.log(WIDEST) / 2
        return apart

    def reach(self) -> Array:
        """Distance of the upper ends from the figures as a share of these; NaN without an interval."""
        return self.ends[1] / self.value - 1

    def times(self, factor: ArrayLike) -> Estimate:
        """Multiply by exact, positive numbers."""
        return replace(self, log=self.log + np.log(factor))

    def take(self, places: ArrayLike) -> Estimate:
        index = np.asarray(places)
        return Estimate(self.log[index], self.error[index], self.freedom[index])

    def where(self, mask: NDArray[np.bool_], other: Estimate) -> Estimate:
        """Choose these figures where ``mask`` holds, else the others."""
        return Estimate(
            np.where(mask, self.log, other.log),
            np.where(mask, self.error, other.error),
            np.where(mask, self.freedom, other.freedom),
        )

    def over(self, other: Estimate) -> Estimate:
        """Ratios to independently measured figures (Welch and Satterthwaite)."""
        variances = np.stack(np.broadcast_arrays(self.error**2, other.error**2))
        freedom = satterthwaite(variances, np.stack(np.broadcast_arrays(self.freedom, other.freedom)))
        with np.errstate(invalid="ignore"):
            log = self.log - other.log
        return Estimate(log, np.sqrt(variances.sum(axis=0)), freedom)

    def beside(self, load: ArrayLike) -> Estimate:
        """Widen ratios that were measured beside other load, given as a share of the machine: it may slow one side more."""
        share = np.minimum(load, _MOST_LOAD)
        if not share.any():
            return self
        added = UNEVEN * np.maximum(share, share / (1 - share) / 2)
        wider = self.over(Estimate(np.zeros_like(share), added, np.full_like(share, np.inf)))
        # What is added is known so much better than an error of two rounds that the interval of both could be narrower.
        narrower = quantile(wider.freedom) * wider.error < quantile(self.freedom) * self.error
        return self.where((share == 0) | narrower | ~self.known, wider)

    def interval(self) -> tuple[Array, Array]:
        """Ends of the intervals for display; NaN where there are none, or they are wider than `WIDEST`."""
        narrow = 2 * quantile(self.freedom) * self.error <= np.log(WIDEST)
        low, high = (np.where(narrow, end, np.nan)[()] for end in self.ends)
        return low, high

    def p_differs(self) -> Array:
        """Two-sided p-values against 1; NaN where there is no interval."""
        return 2 * self._tail(-np.abs(self.log))

    def p_below(self, bound: ArrayLike = 1.0) -> Array:
        """One-sided p-values of the null hypothesis that the true figures are not below ``bound``."""
        return self._tail(self.log - np.log(bound))

    def p_above(self, bound: ArrayLike = 1.0) -> Array:
        """As `p_below`, for figures that are large."""
        return self._tail(np.log(bound) - self.log)

    def notices(self, alpha: float, power: float = LEVEL) -> Array:
        """Logarithms of the smallest ratios that a two-sided test at ``alpha`` detects with a power of 95 %; NaN
        without an error.
        """
        return (quantile(self.freedom, 1 - alpha) + quantile(self.freedom, 2 * power - 1)) * self.error

    def _tail(self, distance: Array) -> Array:
        """Student's cumulative distribution at ``distance``; a step where there is no error."""
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where((self.error == 0) & (distance == 0), 0.0, distance / self.error)
        tail: Array = np.where(np.isinf(self.freedom), special.ndtr(score), special.stdtr(self.freedom, score))
        return tail


def exactly(values: ArrayLike) -> Estimate:
    """Figures without error."""
    logs = np.log(values)
    return Estimate(logs, np.zeros_like(logs), np.full_like(logs, np.inf))


def unknown(count: int) -> Estimate:
    """Missing figures, in arrays of their own."""
    return Estimate(*(np.full(count, np.nan) for _ in range(3)))


def satterthwaite(variances: Array, freedoms: Array) -> Array:
    """Degrees of freedom of sums of variances along the first axis (Satterthwaite); NaN where one term has none."""
    total = variances.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = (variances**2 / freedoms).sum(axis=0)
        freedom = np.where(parts > 0, total**2 / parts, freedoms.min(axis=0))
    return np.where(np.isnan(total), np.nan, freedom)[()]


def geometric_mean(parts: Estimate) -> Estimate:
    """Geometric mean of independent figures."""
    count = parts.log.size
    variances = parts.error**2
    return Estimate(parts.log.mean(), np.sqrt(variances.sum()) / count, satterthwaite(variances, parts.freedom))


def weighted_sum(weights: ArrayLike, parts: Estimate) -> tuple[float, float, float]:
    """Linear combination of independent figures, such as a slope over depth, and the ends of its interval.

    The error of a figure is its value times the error of its logarithm. The ends are NaN where a figure has no error.
    There is one weight a figure.
    """
    shares = np.multiply(weights, parts.value)
    variances = (shares * parts.error) ** 2
    value = float(shares.sum())
    reach = float(quantile(satterthwaite(variances, parts.freedom)) * np.sqrt(variances.sum()))
    return value, value - reach, value + reach


def total(parts: Estimate) -> Estimate:
    """Sum of positive, independent figures, with the error of its logarithm to first order."""
    whole = parts.value.sum()
    variances = (parts.error * parts.value / whole) ** 2
    return Estimate(np.log(whole), np.sqrt(variances.sum()), satterthwaite(variances, parts.freedom))


def quantile(freedom: ArrayLike, level: float = LEVEL) -> Array:
    """Half-width of a 95 % interval of Student's distribution in standard errors; NaN where the freedom is NaN."""
    # scipy.stats has the same in one call, but importing it takes longer than most questions about results.
    known, share = np.asarray(freedom), (1 + level) / 2
    quantiles: Array = np.where(np.isposinf(known), special.ndtri(share), special.stdtrit(known, share))
    return quantiles
