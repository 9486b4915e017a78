"""Whether two figures of the tidy table differ, from their intervals: Welch's test on the logarithmic scale, and Holm's
correction for many of them. docs/method.md says what is compared with what.

Errors and degrees of freedom are columns of the table, as they were estimated from the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mlflow_ngraph.estimates import Array, Estimate, exactly
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, is_complement, reciprocal_of


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
    if reciprocal_of(metric) != metric:
        return figures(frame, metric).interval()
    return _column(frame, metric + LOW), _column(frame, metric + HIGH)


def ratios(frame: pd.DataFrame, metric: str, tops: ArrayLike, bottoms: ArrayLike) -> Estimate:
    """The metric of some rows over that of others, by their places in ``frame``.

    Throughputs of one study, workload, batch size and precision are compared by their speed-ups over the baseline that was
    measured in the same rounds: what slowed a round down is in neither. Everything else is compared as it stands. A number
    over itself is 1; another one over zero, such as the page faults of an engine that causes none, is NaN.
    """
    top, bottom = np.asarray(tops, int), np.asarray(bottoms, int)
    whole = figures(frame, metric)
    found = whole.take(top).over(whole.take(bottom))
    found = found.where(np.isfinite(whole.log[bottom]), exactly(np.full(len(top), np.nan)))
    if reciprocal_of(metric) == "throughput" and "speedup" in frame.columns:
        speedups = figures(frame, "speedup")
        paired = speedups.take(top).over(speedups.take(bottom))
        together = _alike(frame, PAIRED, top, bottom) & np.isfinite(paired.error)
        sign = 1 if metric == "throughput" else -1
        found = found.where(~together, Estimate(sign * paired.log, paired.error, paired.freedom))
    return found.where(~_alike(frame, ("study_id", "cell"), top, bottom), exactly(np.ones(len(top))))


PAIRED = ("study_id", "workload", "precision", "batch")
"""What rows have in common that were measured beside the same baseline in the same rounds."""


def holm(p_values: ArrayLike, hypotheses: int | None = None) -> Array:
    """p-values adjusted by Holm's method: rejecting those below 0.05 errs anywhere in at most 5 of 100 tables.

    Parameters
    ----------
    p_values : ArrayLike
        NaN, where nothing can be tested, stays NaN and does not count.
    hypotheses : int | None
        How many were tested; as many as there are p-values when left out.
    """
    found = np.asarray(p_values, float)
    adjusted = np.full_like(found, np.nan)
    known = np.flatnonzero(~np.isnan(found))
    order = known[np.argsort(found[known], kind="stable")]
    count = len(order) if hypotheses is None else hypotheses
    steps = found[order] * np.maximum(count - np.arange(len(order)), 1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return adjusted


def _alike(frame: pd.DataFrame, names: Sequence[str], one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are equal in all of these columns."""
    if not set(names) <= set(frame.columns):
        return np.zeros(len(one), bool)
    keys = [frame[name].astype("string").fillna("").to_numpy(str) for name in names]
    found: NDArray[np.bool_] = np.logical_and.reduce([key[one] == key[other] for key in keys])
    return found


def _column(frame: pd.DataFrame, name: str) -> Array:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    found: Array = frame[name].to_numpy(float)
    return found
