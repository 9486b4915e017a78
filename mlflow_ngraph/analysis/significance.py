"""Values, errors and intervals of a metric from the tidy table, and Holm's correction of p-values.

Errors and degrees of freedom are columns of the table, estimated from rounds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mlflow_ngraph.estimates import Array, Estimate
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, UNSTEADY, is_complement, reciprocal_of


def figures(frame: pd.DataFrame, metric: str) -> Estimate:
    """Figures of a metric. The error is NaN where there is no interval.

    The table has the columns of `mlflow_ngraph.metrics.with_estimates`. For a complement the figures are those of
    ``1 - metric``.
    """
    values = frame[metric].to_numpy(float)
    source = reciprocal_of(metric)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(1 - values if is_complement(metric) else values)
    error = _column(frame, source + LOG_ERROR)
    return Estimate(logs, error, np.where(error == 0, np.inf, _column(frame, source + FREEDOM)))


def interval(frame: pd.DataFrame, metric: str) -> tuple[Array, Array]:
    """Ends of the intervals of a metric, its own or derived from its reciprocal; NaN without one."""
    shown = figures(frame, metric).interval()
    if reciprocal_of(metric) != metric:
        return shown
    # Tables of older versions have intervals of any width.
    recorded = _column(frame, metric + LOW), _column(frame, metric + HIGH)
    without = np.isfinite(_column(frame, metric + LOG_ERROR)) & np.isnan(shown[0])
    low, high = (np.where(without, np.nan, end) for end in recorded)
    return low, high


def unsteady(frame: pd.DataFrame, metric: str) -> NDArray[np.bool_]:
    """Mark rows where the metric is contaminated."""
    if UNSTEADY not in frame.columns:
        return np.zeros(len(frame), bool)
    return np.array([metric in str(names).split(",") for names in frame[UNSTEADY].fillna("")], bool)


def holm(p_values: ArrayLike, hypotheses: int | None = None) -> Array:
    """Adjust p-values by Holm's method: at 0.05, at most 5 of 100 tables have any false rejection.

    NaN means untested; it stays NaN and does not count among the hypotheses.
    """
    values = np.asarray(p_values)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known])]
    count = len(order) if hypotheses is None else hypotheses
    steps = values[order] * np.maximum(count - np.arange(len(order)), 1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _column(frame: pd.DataFrame, name: str) -> Array:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values: Array = frame[name].to_numpy(float)
    return values
