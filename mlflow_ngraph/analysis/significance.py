"""Figures of the tidy table with their errors, and Holm's correction of many tests of them.

Errors and degrees of freedom are columns of the table, as they were estimated from the rounds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mlflow_ngraph.estimates import Array, Estimate
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, UNSTEADY, is_complement, reciprocal_of


def figures(frame: pd.DataFrame, metric: str) -> Estimate:
    """A metric of the rows of the tidy table. Where a row has no interval the error is NaN.

    Parameters
    ----------
    frame : DataFrame
        The tidy table, with the columns that `mlflow_ngraph.metrics.with_estimates` names.
    metric : str
        Of a complement the figures are those of ``1 - metric``.
    """
    values = frame[metric].to_numpy(float)
    source = reciprocal_of(metric)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(1 - values if is_complement(metric) else values)
    error = _column(frame, source + LOG_ERROR)
    return Estimate(logs, error, np.where(error == 0, np.inf, _column(frame, source + FREEDOM)))


def interval(frame: pd.DataFrame, metric: str) -> tuple[Array, Array]:
    """The ends of the intervals of a metric, as every verb, page and report shows them; NaN where there are none.

    Parameters
    ----------
    frame : DataFrame
        The tidy table.
    metric : str
        One with an interval of its own, or one that has it from the metric that it is the reciprocal of.
    """
    shown = figures(frame, metric).interval()
    if reciprocal_of(metric) != metric:
        return shown
    # A release before had intervals of any width.
    recorded = _column(frame, metric + LOW), _column(frame, metric + HIGH)
    without = np.isfinite(_column(frame, metric + LOG_ERROR)) & np.isnan(shown[0])
    low, high = (np.where(without, np.nan, end) for end in recorded)
    return low, high


def unsteady(frame: pd.DataFrame, metric: str) -> NDArray[np.bool_]:
    """Of which rows the metric is one that the noise of the machine touches."""
    if UNSTEADY not in frame.columns:
        return np.zeros(len(frame), bool)
    return np.array([metric in str(names).split(",") for names in frame[UNSTEADY].fillna("")], bool)


def holm(p_values: ArrayLike, hypotheses: int | None = None) -> Array:
    """p-values adjusted by Holm's method: rejecting those below 0.05 errs anywhere in at most 5 of 100 tables.

    Parameters
    ----------
    p_values : ArrayLike
        NaN, where nothing can be tested, stays NaN and does not count.
    hypotheses : int | None
        How many were tested; as many as there are p-values when left out.
    """
    values = np.asarray(p_values, float)
    adjusted = np.full_like(values, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    count = len(order) if hypotheses is None else hypotheses
    steps = values[order] * np.maximum(count - np.arange(len(order)), 1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _column(frame: pd.DataFrame, name: str) -> Array:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values: Array = frame[name].to_numpy(float)
    return values
