"""Choose an engine's best cell, compare it with a champion's with significance, and find rivals that may beat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import comparison
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.rivals import rivals_of
from mlflow_ngraph.analysis.round_pairs import CHOICE
from mlflow_ngraph.analysis.undecided import Rival
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.estimates import ALPHA
from mlflow_ngraph.metrics import COLUMNS, METRICS, is_complement
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph.text import plain
from mlflow_ngraph.verdicts import Verdict

METRIC = "throughput"
"""Default metric for comparing engines."""
_HOW = {
    comparison.SAME_ROUNDS: "paired",
    comparison.CHAIN: "by a chain of pairs",
    comparison.APART: "not paired",
}
"""Clauses for the kinds of comparison."""


@dataclass(frozen=True)
class EngineComparison:
    """Comparison of a candidate with a champion."""

    metric: str
    candidate: float
    champion: float
    ratio: float
    """The candidate's figure divided by the champion's; for ``cpu_reduction`` the ratio of remaining CPU use."""
    ci_low: float | None
    """Lower end of the 95 % interval; None where the metric has none."""
    ci_high: float | None
    p_value: float | None
    """Two-sided p-value against equality."""
    how: str
    """Kind of comparison, as in `comparison.Ratios`."""

    @property
    def better(self) -> bool:
        """Tell if the candidate is significantly better."""
        if self.p_value is None or self.p_value >= ALPHA:
            return False
        higher = METRICS[self.metric].better == "higher" and not is_complement(self.metric)
        return self.ratio > 1 if higher else self.ratio < 1

    @property
    def text(self) -> str:
        """Ratio with interval and p-value as text."""
        text = f"{self.metric} ratio {self.ratio:.3f}"
        if self.ci_low is None or self.ci_high is None or self.p_value is None:
            return f"{text}, without an interval"
        return f"{text} [{self.ci_low:.3f}, {self.ci_high:.3f}], p {_p(self.p_value)}, {_HOW[self.how]}"


def check_metric(metric: str) -> str:
    """Refuse a metric that engines cannot be compared by.

    Raises `UnknownNameError` if there is no such metric, and `UsageError` if neither high nor low is better.
    """
    known = METRICS.get(metric)
    if known is None:
        raise UnknownNameError("metric", metric, METRICS)
    if known.better == "neither":
        raise UsageError(f"no engine is better by its {metric}: choose another metric, such as {METRIC}")
    return metric


def best(cells: pd.DataFrame, metric: str, batch: int | None = None) -> Mapping[str, Any] | None:
    """Best cell of an engine, or its cell at ``batch``; None without any.

    Cells that are not ``ok`` count only where no ``ok`` cell has the metric.
    """
    if metric not in cells.columns:
        return None
    measured = cells[cells[metric].notna()]
    if batch is not None:
        measured = measured[measured["batch"] == batch]
    trusted = measured[measured["verdict"] == str(Verdict.OK)]
    measured = trusted if len(trusted) else measured
    if measured.empty:
        return None
    compared = Comparison(measured, METRICS[metric])
    ranked = np.flatnonzero(compared.ranks)
    return dict(
        measured.iloc[compared.leader(ranked) if len(ranked) else compared.ordered(np.arange(len(measured)))[0]]
    )


def rivals(
    cells: pd.DataFrame, others: pd.DataFrame, metric: str, batch: int | None = None
) -> tuple[Mapping[str, Any], tuple[Rival, ...]]:
    """Best cell of an engine, and cells of other engines that could beat it.

    At least one of ``cells``, those of the engine, has the metric. A rival that loses to any of its batch sizes does
    not count. ``others`` are of other engines with the same model, precision and machine.
    """
    # The same choice at the same batch size, from another study, is the engine itself at another time.
    same = [*CHOICE, "batch"]
    measured = set(cells[same].astype(str).itertuples(index=False))
    others = others[[row not in measured for row in others[same].astype(str).itertuples(index=False)]]
    frame = typed(pd.concat([cells, others], ignore_index=True), COLUMNS)
    compared = Comparison(frame, METRICS[metric])
    places = np.arange(len(frame)) if batch is None else np.flatnonzero(frame["batch"] == batch)
    ranked = places[compared.ranks[places]]
    own = compared.ordered(places[places < len(cells)])
    able = own[compared.ranks[own]]
    lead = compared.leader(ranked) if len(ranked) else -1
    if lead in able:  # it is the recommendation, with the same certainty
        able = np.array([lead])
    elif len(able):
        lead = compared.leader(able)
    else:
        lead = int(own[0])
    found = {
        place: tuple(rival for rival in rivals_of(compared, place, places) if not rival.same_engine)
        for place in [lead, *able[able != lead].tolist()]
    }
    # An engine cannot be beaten if one of its cells cannot.
    place = next((place for place, beyond in found.items() if not beyond), lead)
    return dict(frame.iloc[place]), found[place]


def compare(
    candidate: Mapping[str, Any], champion: Mapping[str, Any], metric: str, beside: pd.DataFrame | None = None
) -> EngineComparison:
    """Compare two cells by shared rounds; see docs/explanation/comparing.md. ``beside`` are other cells of both
    engines, which can link two cells without shared rounds.
    """
    both = pd.DataFrame([dict(candidate), dict(champion)])
    frame = typed(pd.concat([both, *([] if beside is None else [beside])], ignore_index=True), COLUMNS)
    if baselines.differ(frame, metric, [0], [1]).any():
        now, before = baselines.labels(frame)[:2]
        raise UsageError(
            f"{metric} is over {now} in the candidate and over {before} in the champion, which are different figures: compare "
            f"them by another metric, such as {METRIC}"
        )
    ratio = Comparison(frame, METRICS[metric]).ratios([0], [1])
    low, high = ratio.interval()
    return EngineComparison(
        metric=metric,
        candidate=float(candidate[metric]),
        champion=float(champion[metric]),
        ratio=float(ratio.value[0]),
        ci_low=plain(low[0]),
        ci_high=plain(high[0]),
        p_value=plain(ratio.p_differs()[0]),
        how=str(ratio.how[0]),
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"= {value:.4f}"
