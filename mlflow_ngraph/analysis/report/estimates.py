"""Figures of several cells in one, with intervals: means over models, slopes and retentions over depth.

Every cell is an estimate whose error is got back from its interval, as `mlflow_ngraph.analysis.significance` does it, and
cells are taken as measured independently of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.measure.statistics import Estimate

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Value:
    """A number with the ends of its 95 % interval, where it has one."""

    value: float
    interval: Interval

    @property
    def low(self) -> float:
        """The lower end, or NaN."""
        return self.interval[0] if self.interval else float("nan")

    @property
    def high(self) -> float:
        """The upper end, or NaN."""
        return self.interval[1] if self.interval else float("nan")

    def side_of(self, bound: float) -> int:
        """1 if it is certainly above ``bound``, -1 if certainly below, 0 if the interval does not tell."""
        if self.interval is None:
            return 0
        return int(self.interval[0] > bound) - int(self.interval[1] < bound)


def value(estimate: Estimate) -> Value:
    """An estimate as a number with its interval."""
    return Value(estimate.value, estimate.interval())


def estimates(frame: pd.DataFrame, metric: str) -> list[Estimate]:
    """A positive metric of some cells; those without an interval have no freedom."""
    found = significance.figures(frame, metric)
    errors, freedoms = np.nan_to_num(found.error, nan=0.0), np.nan_to_num(found.freedom, nan=0.0, posinf=np.inf)
    return [Estimate(*map(float, parts)) for parts in zip(found.log, errors, freedoms, strict=True)]


def geometric_mean(parts: Sequence[Estimate]) -> Estimate:
    """The geometric mean of independent figures."""
    product = reduce(lambda one, other: statistics.ratio(one, replace(other, log=-other.log)), parts)
    return replace(product, log=product.log / len(parts), error=product.error / len(parts))


def mean(parts: Sequence[Estimate]) -> Value:
    """The arithmetic mean of independent figures."""
    return Value(*statistics.weighted_sum([1 / len(parts)] * len(parts), parts))


def sum_ratio(tops: Sequence[Estimate], bottoms: Sequence[Estimate]) -> Estimate:
    """The sum of some figures over that of others, all of them independent."""
    return statistics.ratio(_sum(tops), _sum(bottoms))


def slope(depths: Sequence[int], parts: Sequence[Estimate]) -> Value:
    """Least-squares slope over depth."""
    centred = np.asarray(depths, float) - np.mean(depths)
    weights = centred / float(centred @ centred)
    return Value(*statistics.weighted_sum([float(weight) for weight in weights], parts))


def retention(depths: Sequence[int], parts: Sequence[Estimate]) -> Value | None:
    """The figure at the deepest stack over that at depth one; None where depth one, or any other, is missing."""
    by_depth = dict(zip(depths, parts, strict=True))
    deepest = max(by_depth)
    if 1 not in by_depth or deepest == 1:
        return None
    return value(statistics.ratio(by_depth[deepest], by_depth[1]))


def pooled(deviations: pd.Series[float]) -> float:
    """The root of the mean variance of several cells."""
    return float(np.sqrt(np.mean(deviations.to_numpy(float) ** 2)))


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """A sum of positive figures, with the error of its logarithm to first order."""
    total, _ = statistics.weighted_sum([1.0] * len(parts), parts)
    unit = replace(parts[0], log=0.0, error=parts[0].error * parts[0].value / total)
    for part in parts[1:]:
        unit = statistics.ratio(unit, replace(part, log=0.0, error=part.error * part.value / total))
    return replace(unit, log=float(np.log(total)))
