"""Whether two figures of the tidy table differ, from their intervals: Welch's test on the logarithmic scale, and Holm's
correction for many of them. docs/method.md says what is compared with what.

Errors and degrees of freedom are columns of the table, as they were estimated from the rounds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mlflow_ngraph.analysis import shared_rounds
from mlflow_ngraph.estimates import Array, Estimate, exactly
from mlflow_ngraph.metrics import FREEDOM, HIGH, LOG_ERROR, LOW, METRICS, UNSTEADY, is_complement, reciprocal_of
from mlflow_ngraph.tables import baselines


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


def ratios(frame: pd.DataFrame, metric: str, tops: ArrayLike, bottoms: ArrayLike) -> Estimate:
    """The metric of some rows over that of others, by their places in ``frame``.

    Throughputs, latencies and speed-ups of rows that share rounds of a study are compared round by round: what slowed a
    round down is in neither. Everything else is compared as it stands. A number over itself is 1; another one over zero,
    such as the page faults of an engine that causes none, is NaN, as is a speed-up over one baseline over that over another.
    """
    top, bottom = np.asarray(tops, int), np.asarray(bottoms, int)
    whole = figures(frame, metric)
    quotients = whole.take(top).over(whole.take(bottom))
    quotients = quotients.where(np.isfinite(whole.log[bottom]), exactly(np.full(len(top), np.nan)))
    by_round = METRICS[metric].by_round if metric in METRICS else 0
    if by_round:
        direct = shared_rounds.throughput_ratios(frame, top, bottom, shared_rounds.together(metric))
        direct = replace(direct, log=by_round * direct.log)
        quotients = quotients.where(~(direct.known & np.isfinite(quotients.log)), direct)
    quotients = quotients.where(~baselines.differ(frame, metric, top, bottom), exactly(np.full(len(top), np.nan)))
    return quotients.where(~shared_rounds.alike(frame, ("study_id", "cell"), top, bottom), exactly(np.ones(len(top))))


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
