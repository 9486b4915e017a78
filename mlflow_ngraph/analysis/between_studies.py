"""Estimate the variance between studies of a machine beyond their own errors, and widen intervals by it.

Rounds cancel disturbances that slow down all lanes of a round. A disturbance that outlasts the study and affects lanes
differently is in every round alike. Only another study reveals it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.compare import ALIKE
from mlflow_ngraph.estimates import Array, Estimate
from mlflow_ngraph.metrics import FREEDOM, LOG_ERROR, reciprocal_of
from mlflow_ngraph.tables.baselines import is_ratio, labels
from mlflow_ngraph.verdicts import Verdict

FEWEST = 5
"""Fewest degrees of freedom for an estimate."""
_HALVINGS = 60
"""Steps of the search for a variance: as many as the digits of a number bear."""
Machine = tuple[str, str]
"""Device and fingerprint."""
_MACHINE = ("device", "fingerprint")


@dataclass(frozen=True)
class Between:
    """Variance that studies of one machine add to a metric, besides their own errors."""

    deviation: float
    """Standard deviation of the logarithms between studies; 0 where their errors explain all differences."""
    freedom: float
    """Degrees of freedom: one for a figure of two studies, two thirds for each of many."""
    figures: int
    """Cells measured by several studies."""
    studies: int

    def to_plain(self, machine: Machine) -> dict[str, Any]:
        device, fingerprint = machine
        return {
            "device": device,
            "fingerprint": fingerprint,
            "deviation": self.deviation,
            "figures": self.figures,
            "studies": self.studies,
        }


def needed(metric: str) -> set[str]:
    """Columns of the tidy table that are needed."""
    source = reciprocal_of(metric)
    return {*ALIKE, *_MACHINE, metric, source + LOG_ERROR, source + FREEDOM, "study_id", "started_at", "verdict"}


def of_machines(frame: pd.DataFrame, devices: Collection[str], metric: str = "speedup") -> dict[Machine, Between]:
    """Variance of a metric between studies of each machine, where it can be estimated.

    ``frame`` is the tidy table with all known studies, not just the newest result of each cell. Metrics without an
    interval have no estimate.
    """
    if not needed(metric) <= set(frame.columns):
        return {}
    asked = frame[frame["device"].isin(list(devices)) & (frame["verdict"] == str(Verdict.OK))]
    asked = asked.sort_values("started_at", kind="stable")
    whole = significance.figures(asked, metric)
    # A study on several servers counts once. Exact values, such as the baseline over itself, are no figures, and what has
    # too large an error to be shown with an interval tells nothing of studies.
    shown = np.isfinite(whole.interval()[0])
    rows = asked[np.isfinite(whole.log) & (whole.error > 0) & shown].drop_duplicates(
        ["study_id", *ALIKE, "fingerprint"]
    )
    found = {}
    for machine, inside in rows.groupby(list(_MACHINE), sort=False).indices.items():
        own = rows.iloc[inside]
        alike = [own[name] for name in ALIKE] + ([labels(own)] if is_ratio(metric) else [])
        cells = own.groupby(alike, sort=False, dropna=False).ngroup().to_numpy(np.int64)
        estimates = significance.figures(own, metric)
        between = estimated(estimates.log, estimates.error, cells, pd.factorize(own["study_id"])[0])
        if between is not None:
            found[str(machine[0]), str(machine[1])] = between
    return found


def machines(rows: pd.DataFrame) -> list[Machine]:
    """Machine of each row; with an empty name where the table lacks it."""
    columns = [rows[name].astype("string").fillna("") if name in rows else [""] * len(rows) for name in _MACHINE]
    return [(str(device), str(fingerprint)) for device, fingerprint in zip(*columns, strict=True)]


def estimated(logs: Array, errors: Array, figures: NDArray[np.int64], studies: NDArray[np.int64]) -> Between | None:
    """Estimate the variance of figures between studies, less their own errors; None with too few repeated figures.

    Uses squared differences between a study and the next one with the figure, pooled over figures (von Neumann,
    Distribution of the ratio of the mean square successive difference to the variance, 1941). So a lasting change, such
    as an upgrade, counts once and not in every later study. The variance is the one with which the squares are as large
    on average as expected, each over its own (Paule and Mandel, Consensus values and weighting factors, 1982): figures
    with large errors have hardly any say.

    ``logs`` and ``errors`` are logarithms of measured figures with their standard errors, in order of time; ``figures``
    and ``studies`` tell the figure and the study of each. All have the shape (measurements,).
    """
    _, of = np.unique(figures, return_inverse=True)
    times = np.bincount(of).astype(float)
    often = times[times > 1]
    freedom = float((2 * (often - 1) ** 2 / (3 * often - 4)).sum())
    if freedom < FEWEST:
        return None
    order = np.argsort(of, kind="stable")
    neighbours = np.flatnonzero(np.diff(of[order]) == 0)
    squares, variances = np.diff(logs[order])[neighbours] ** 2, errors[order] ** 2
    own = variances[neighbours] + variances[neighbours + 1]
    low, high = 0.0, float(squares.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(squares / (own + middle)) > 1 else (low, middle)
    return Between(float(np.sqrt(low / 2)), freedom, often.size, len(np.unique(studies[times[of] > 1])))


def widened(ratios: Estimate, of: Sequence[Machine], between: Mapping[Machine, Between], studies: int = 1) -> Estimate:
    """Widen ratios by the variance between studies. They lose their interval where it is unknown.

    ``of`` are the machines of the ratios. Those whose sides were measured at different times are of two ``studies``.
    """
    known = [between.get(machine) for machine in of]
    deviation = np.array([np.nan if part is None else part.deviation * np.sqrt(studies) for part in known])
    freedom = np.array([np.nan if part is None else part.freedom for part in known])
    return ratios.over(Estimate(np.zeros(len(known)), deviation, freedom))


def widened_between(
    ratios: Estimate, frame: pd.DataFrame, tops: NDArray[Any], bottoms: NDArray[Any], between: Mapping[Machine, Between]
) -> Estimate:
    """Widen the ratios between rows of different studies, where the variance between studies is known.

    The ratios are of the rows at ``tops`` to those at ``bottoms``, positions in ``frame``.
    """
    if not between:
        return ratios
    wider = widened(ratios, machines(frame.iloc[bottoms]), between, studies=2)
    study = frame["study_id"].to_numpy(object)
    return wider.where(wider.known & (study[tops] != study[bottoms]), ratios)
