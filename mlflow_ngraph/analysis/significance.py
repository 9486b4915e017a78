"""Whether two figures of the tidy table differ, from their intervals: Welch's test on the logarithmic scale, and Holm's
correction for many of them. docs/method.md says what is compared with what.

Everything works on arrays, because a large table has thousands of comparisons. Of the logarithm of a figure its error is
got back from the interval, which is Student's over rounds: ``(log high - log low) / 2 / t(0.975, rounds - 1)``, or with the
degrees of freedom of a trimmed mean where the figure is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from mlflow_ngraph.measure.statistics import LEVEL, Array, quantile, trimmed

SAME_ERROR = {"latency_mean_ms": "throughput"}
"""Metrics without an interval of their own that are an exact number divided by one with an interval."""
COMPLEMENTS = ("cpu_reduction",)
"""Metrics whose intervals are those of one minus themselves."""
TRIMMED = ("speedup", "bsr", "cpu_reduction")
"""Metrics that are trimmed means over rounds."""


@dataclass(frozen=True)
class Figures:
    """Positive figures with the uncertainty of their logarithms; arrays of equal shape."""

    log: Array
    error: Array
    """Standard errors of ``log``; NaN where there is no interval."""
    freedom: Array
    """Degrees of freedom of ``error``; infinite where a figure is known exactly."""

    @cached_property
    def value(self) -> Array:
        """The figures themselves."""
        return np.exp(self.log)

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The ends of the intervals of reports."""
        return self.interval()

    def take(self, places: ArrayLike) -> Figures:
        """The figures at some places."""
        index = np.asarray(places)
        return Figures(self.log[index], self.error[index], self.freedom[index])

    def where(self, mask: NDArray[np.bool_], other: Figures) -> Figures:
        """These figures where ``mask`` holds, else the others."""
        return Figures(
            np.where(mask, self.log, other.log),
            np.where(mask, self.error, other.error),
            np.where(mask, self.freedom, other.freedom),
        )

    def over(self, other: Figures) -> Figures:
        """The ratios to figures that were measured independently (Welch and Satterthwaite)."""
        mine, theirs = self.error**2, other.error**2
        total = mine + theirs
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(mine > 0, mine**2 / self.freedom, 0) + np.where(theirs > 0, theirs**2 / other.freedom, 0)
            freedom = np.where(parts > 0, total**2 / parts, np.minimum(self.freedom, other.freedom))
            log = self.log - other.log
        return Figures(log, np.sqrt(total), np.where(np.isnan(total), np.nan, freedom))

    def interval(self, level: float = LEVEL) -> tuple[Array, Array]:
        """The ends of the confidence intervals; NaN where there are none."""
        reach = quantile(self.freedom, level) * self.error
        return np.exp(self.log - reach), np.exp(self.log + reach)

    def p_differs(self) -> Array:
        """Two-sided p-values against 1; NaN where there is no interval."""
        return 2 * self._tail(-np.abs(self.log))

    def p_below(self, bound: ArrayLike = 1.0) -> Array:
        """One-sided p-values: how surprising such small figures are if the true ones are not below ``bound``."""
        return self._tail(self.log - np.log(bound))

    def p_above(self, bound: ArrayLike = 1.0) -> Array:
        """As `p_below`, for figures that are large."""
        return self._tail(np.log(bound) - self.log)

    def _tail(self, distance: Array) -> Array:
        """The share of Student's distribution below ``distance``; one without error is below or it is not."""
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(self.error == 0, np.sign(distance) * np.inf, distance / self.error)
        score = np.where((self.error == 0) & (distance == 0), 0.0, score)
        normal, student = special.ndtr(score), special.stdtr(np.where(np.isinf(self.freedom), 1.0, self.freedom), score)
        tail = np.where(np.isinf(self.freedom), normal, student)
        # stdtr has no answer at infinity.
        tail = np.where(np.isinf(score), (score > 0).astype(float), tail)
        found: Array = np.where(np.isnan(self.error), np.nan, tail)
        return found


def exactly(values: ArrayLike) -> Figures:
    """Figures that are known."""
    found = np.log(np.asarray(values, float))
    return Figures(found, np.zeros_like(found), np.full_like(found, np.inf))


def figures(frame: pd.DataFrame, metric: str) -> Figures:
    """A metric of the rows of the tidy table. Where a row has no interval, or one round, the error is NaN."""
    values = frame[metric].to_numpy(float)
    source = SAME_ERROR.get(metric, metric)
    low, high = (_column(frame, f"{source}_ci_{end}") for end in ("low", "high"))
    if metric in COMPLEMENTS:
        values, low, high = 1 - values, 1 - high, 1 - low
    rounds = _column(frame, "rounds")
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = (np.log(high) - np.log(low)) / 2
        freedom = np.where(reach == 0, np.inf, _freedom(rounds, trims=metric in TRIMMED))
        error = np.where(reach == 0, 0.0, reach / quantile(freedom))
        return Figures(np.log(values), np.where(freedom > 0, error, np.nan), np.where(freedom > 0, freedom, np.nan))


def ends(frame: pd.DataFrame, metric: str) -> tuple[Array, Array]:
    """The ends of the intervals of a metric: recorded ones, or those of the figure that it is the reciprocal of; else NaN."""
    if f"{metric}_ci_low" not in frame.columns and metric in SAME_ERROR:
        return figures(frame, metric).interval()
    return _column(frame, f"{metric}_ci_low"), _column(frame, f"{metric}_ci_high")


def _freedom(rounds: Array, *, trims: bool) -> Array:
    """Degrees of freedom of figures over so many rounds; NaN where their number is not known."""
    if not trims:
        return rounds - 1
    # As many numbers of rounds as there are, not as rows.
    known, where = np.unique(rounds, return_inverse=True)
    found = [count if np.isnan(count) else count - 2 * trimmed(int(count)) - 1 for count in known]
    return np.array(found, float)[where]


def ratios(frame: pd.DataFrame, metric: str, tops: ArrayLike, bottoms: ArrayLike) -> Figures:
    """The metric of some rows over that of others, by their places in ``frame``.

    Throughputs of one study, workload, batch size and precision are compared by their speed-ups over the baseline that was
    measured in the same rounds: what slowed a round down is in neither. Everything else is compared as it stands. A number
    over itself is 1; another one over zero, such as the page faults of an engine that causes none, is NaN.
    """
    top, bottom = np.asarray(tops, int), np.asarray(bottoms, int)
    whole = figures(frame, metric)
    found = whole.take(top).over(whole.take(bottom))
    found = found.where(np.isfinite(whole.log[bottom]), exactly(np.full(len(top), np.nan)))
    if SAME_ERROR.get(metric, metric) == "throughput" and "speedup" in frame.columns:
        speedups = figures(frame, "speedup")
        paired = speedups.take(top).over(speedups.take(bottom))
        together = _alike(frame, PAIRED, top, bottom) & np.isfinite(paired.error)
        sign = 1 if metric == "throughput" else -1
        found = found.where(~together, Figures(sign * paired.log, paired.error, paired.freedom))
    return found.where(~_alike(frame, ("study_id", "cell"), top, bottom), exactly(np.ones(len(top))))


PAIRED = ("study_id", "workload", "precision", "batch")
"""What rows have in common that were measured beside the same baseline in the same rounds."""


def holm(p_values: ArrayLike, hypotheses: int | None = None) -> Array:
    """p-values adjusted by Holm's method: rejecting those below 0.05 errs anywhere in at most 5 of 100 tables.

    Parameters
    ----------
    p_values: NaN, where nothing can be tested, stays NaN and does not count.
    hypotheses: how many were tested; as many as there are p-values when left out.
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
