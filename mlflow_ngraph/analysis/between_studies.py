"""What another hour changes: how far the same figures differ from study to study, beyond what their intervals say.

The rounds of a study take out what slows down all lanes of a round. What lasts longer than the study, and bears on one lane more
than on another, is in all of its rounds alike; only another study shows it.
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
"""Degrees of freedom from which on something is said."""
Machine = tuple[str, str]
"""Device and fingerprint."""
_MACHINE = ("device", "fingerprint")


@dataclass(frozen=True)
class Between:
    """What studies of one machine add to the scatter of a metric, beside their own errors."""

    deviation: float
    """Standard deviation of the logarithms between studies; 0 where they differ by no more than their errors explain."""
    freedom: float
    """Degrees of freedom: one for a figure of two studies, two thirds for each of many."""
    figures: int
    """Cells that several studies measured."""
    studies: int

    def to_plain(self, machine: Machine) -> dict[str, Any]:
        """As JSON has it."""
        device, fingerprint = machine
        return {
            "device": device,
            "fingerprint": fingerprint,
            "deviation": self.deviation,
            "figures": self.figures,
            "studies": self.studies,
        }


def needed(metric: str) -> set[str]:
    """The columns of the tidy table that are looked at here."""
    source = reciprocal_of(metric)
    return {*ALIKE, *_MACHINE, metric, source + LOG_ERROR, source + FREEDOM, "study_id", "started_at", "verdict"}


def of_machines(frame: pd.DataFrame, devices: Collection[str], metric: str = "speedup") -> dict[Machine, Between]:
    """What another study changes of a metric on each machine of which that can be told.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table, with all studies that are known; not the newest result of each cell alone.
    devices : Collection[str]
        Those that are asked about.
    metric : str
        One with an interval; of others nothing can be told.
    """
    if not needed(metric) <= set(frame.columns):
        return {}
    asked = frame[frame["device"].isin(list(devices)) & (frame["verdict"] == str(Verdict.OK))]
    asked = asked.sort_values("started_at", kind="stable")
    whole = significance.figures(asked, metric)
    # A study that was recorded on several servers is one. What is exact, such as the baseline over itself, is no figure.
    rows = asked[np.isfinite(whole.log) & (whole.error > 0)].drop_duplicates(["study_id", *ALIKE, "fingerprint"])
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
    """The machine of each row; one without a name where a table does not say."""
    columns = [rows[name].astype("string").fillna("") if name in rows else [""] * len(rows) for name in _MACHINE]
    return [(str(device), str(fingerprint)) for device, fingerprint in zip(*columns, strict=True)]


def estimated(logs: Array, errors: Array, figures: NDArray[np.int64], studies: NDArray[np.int64]) -> Between | None:
    """The scatter of figures between studies, less what their errors explain; None where too little was measured twice.

    From the squares of the differences between a study and the next one that has the figure (von Neumann, Distribution of the
    ratio of the mean square successive difference to the variance, 1941), pooled over figures: a change that stays, such as an
    upgrade, counts once and not in every study after it.

    Parameters
    ----------
    logs, errors : Array
        Logarithms of figures as studies measured them, with their standard errors, in the order of time; shape (measurements,).
    figures, studies : NDArray[np.int64]
        Which figure and which study each belongs to; shape (measurements,).
    """
    _, of = np.unique(figures, return_inverse=True)
    times = np.bincount(of).astype(float)
    often = times[times > 1]
    freedom = float((2 * (often - 1) ** 2 / (3 * often - 4)).sum())
    if freedom < FEWEST:
        return None
    order = np.argsort(of, kind="stable")
    neighbours = np.flatnonzero(np.diff(of[order]) == 0)
    changes, variances = np.diff(logs[order])[neighbours], errors[order] ** 2
    excess = changes**2 - variances[neighbours] - variances[neighbours + 1]
    deviation = float(np.sqrt(max(0.0, excess.mean() / 2)))
    return Between(deviation, freedom, often.size, len(np.unique(studies[times[of] > 1])))


def widened(ratios: Estimate, of: Sequence[Machine], between: Mapping[Machine, Between], studies: int = 1) -> Estimate:
    """Ratios with what other studies may make of them; without an interval where that is not known of a machine.

    Parameters
    ----------
    ratios : Estimate
        Of figures.
    of : Sequence[Machine]
        The machine of each.
    between : Mapping[Machine, Between]
        What is known.
    studies : int
        How many took part in each ratio; two where its sides were measured at different times.
    """
    known = [between.get(machine) for machine in of]
    deviation = np.array([np.nan if part is None else part.deviation * np.sqrt(studies) for part in known])
    freedom = np.array([np.nan if part is None else part.freedom for part in known])
    return ratios.over(Estimate(np.zeros(len(known)), deviation, freedom))


def allowed_for(
    ratios: Estimate, frame: pd.DataFrame, tops: NDArray[Any], bottoms: NDArray[Any], between: Mapping[Machine, Between]
) -> Estimate:
    """Ratios of rows of different studies with what these differ by without any cause; as they are where that is not known.

    Parameters
    ----------
    ratios : Estimate
        Of the rows at ``tops`` to those at ``bottoms``, places in ``frame``.
    """
    if not between:
        return ratios
    wider = widened(ratios, machines(frame.iloc[bottoms]), between, studies=2)
    study = frame["study_id"].to_numpy(object)
    return wider.where(wider.known & (study[tops] != study[bottoms]), ratios)
