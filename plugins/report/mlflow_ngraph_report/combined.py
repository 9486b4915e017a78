"""Estimates over several cells with their errors: means over models, slopes and retentions over depth.

Cells count as independent measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mlflow_ngraph import estimates
from mlflow_ngraph.estimates import Estimate

NAN = float("nan")


@dataclass(frozen=True)
class Value:
    """A number with the ends of its 95 % interval, or NaN."""

    value: float
    low: float = NAN
    high: float = NAN

    @property
    def certain(self) -> bool:
        """Tell if it has an interval."""
        return self.low == self.low and self.high == self.high

    def side_of(self, bound: float) -> int:
        """1 if significantly above ``bound``, -1 if significantly below, else 0."""
        return int(self.low > bound) - int(self.high < bound)


def values(parts: Estimate) -> list[Value]:
    """Convert estimates to numbers with intervals."""
    columns = (np.atleast_1d(column) for column in (parts.value, *parts.interval()))
    return [Value(*map(float, row)) for row in zip(*columns, strict=True)]


def geometric_mean(parts: Estimate) -> Value:
    """Geometric mean of independent figures."""
    return values(estimates.geometric_mean(parts))[0]


def mean(parts: Estimate) -> Value:
    """Arithmetic mean. The interval is of its logarithm, so no end is below zero."""
    return values(estimates.total(parts).times(1 / parts.log.size))[0]


def sum_ratio(tops: Estimate, bottoms: Estimate) -> Value:
    """Ratio of two sums of independent figures."""
    return values(estimates.total(tops).over(estimates.total(bottoms)))[0]


def slope(depths: Sequence[int], parts: Estimate) -> Value:
    """Least-squares slope over at least two depths, per stacked block."""
    centred = np.asarray(depths, float) - np.mean(depths)
    return Value(*estimates.weighted_sum(centred / float(centred @ centred), parts))


def retention(depths: Sequence[int], parts: Estimate) -> Value | None:
    """Ratio of the deepest stack's figure to that of depth one; None if a depth is missing."""
    deepest = max(depths)
    if 1 not in depths or deepest == 1:
        return None
    top, bottom = (parts.take([list(depths).index(depth)]) for depth in (deepest, 1))
    return values(top.over(bottom))[0]


def pooled(deviations: pd.Series[float]) -> float:
    """Root of the mean variance of several cells."""
    return float(np.sqrt(np.mean(deviations.to_numpy(float) ** 2)))
