"""Whether one engine is better than another: by the cell that each of them does best, and by what chance alone can do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.compare import TIED_FROM
from mlflow_ngraph.analysis.results import COLUMNS, typed
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.tracking.schema import CELL_METRICS
from mlflow_ngraph.verdicts import Verdict

METRIC = "throughput"
"""What engines are compared by where nothing else is said."""
_OF_COMPLEMENT = "cpu_reduction"
"""Its ratios are those of one minus itself, of which less is better."""


@dataclass(frozen=True)
class Comparison:
    """A candidate beside a champion."""

    metric: str
    candidate: float
    champion: float
    ratio: float
    """The candidate's figure over the champion's; of ``cpu_reduction``, what is left of the CPU use."""
    ci_low: float | None
    """Lower end of the 95 % interval; None where the metric has none."""
    ci_high: float | None
    p_value: float | None
    """Two-sided, against no difference at all."""
    paired: bool
    """Whether both were measured in the same rounds of one study, beside the same baseline."""

    @property
    def better(self) -> bool:
        """Whether the candidate is better, and chance alone would rarely make it look so."""
        if self.p_value is None or self.p_value >= TIED_FROM:
            return False
        higher = CELL_METRICS[self.metric].better == "higher" and self.metric != _OF_COMPLEMENT
        return self.ratio > 1 if higher else self.ratio < 1

    @property
    def said(self) -> str:
        """The ratio with its interval and p-value."""
        text = f"{self.metric} ratio {self.ratio:.3f}"
        if self.ci_low is None or self.ci_high is None or self.p_value is None:
            return f"{text}, without an interval"
        how = "paired" if self.paired else "not paired"
        return f"{text} [{self.ci_low:.3f}, {self.ci_high:.3f}], p {_p(self.p_value)}, {how}"


def check_metric(metric: str) -> str:
    """``metric``, if engines can be compared by it.

    Raises
    ------
    UnknownNameError: there is no such metric.
    UsageError: neither high nor low is better.
    """
    known = CELL_METRICS.get(metric)
    if known is None or metric.endswith(("_ci_low", "_ci_high")):
        raise UnknownNameError("metric", metric, (name for name in CELL_METRICS if not name.endswith("_ci_low")))
    if known.better == "neither":
        raise UsageError(f"no engine is better by its {metric}: choose another metric, such as {METRIC}")
    return metric


def best(cells: pd.DataFrame, metric: str, batch: int | None = None) -> Mapping[str, Any] | None:
    """The cell that an engine is judged by: at ``batch``, or the one that it does best; None where there is none.

    A cell that is not ``ok`` only counts where no ``ok`` one has the metric.
    """
    if metric not in cells.columns:
        return None
    found = cells[cells[metric].notna()]
    if batch is not None:
        found = found[found["batch"] == batch]
    trusted = found[found["verdict"] == str(Verdict.OK)]
    found = trusted if len(trusted) else found
    if found.empty:
        return None
    ordered = found.sort_values(metric, ascending=CELL_METRICS[metric].better == "lower", kind="stable")
    return dict(ordered.iloc[0])


def compare(candidate: Mapping[str, Any], champion: Mapping[str, Any], metric: str) -> Comparison:
    """How two cells differ. Cells of one study are compared by what they have in common; see docs/method.md."""
    frame = typed(pd.DataFrame([dict(candidate), dict(champion)]), COLUMNS)
    ratio = significance.ratios(frame, metric, [0], [1])
    low, high = ratio.interval()
    return Comparison(
        metric=metric,
        candidate=float(candidate[metric]),
        champion=float(champion[metric]),
        ratio=float(ratio.value[0]),
        ci_low=_known(low[0]),
        ci_high=_known(high[0]),
        p_value=_known(ratio.p_differs()[0]),
        paired=_paired(frame, metric),
    )


def _paired(frame: pd.DataFrame, metric: str) -> bool:
    if significance.SAME_ERROR.get(metric, metric) != "throughput":
        return False
    intervals = [f"speedup_ci_{end}" for end in ("low", "high")]
    together = all(frame[name].iloc[0] == frame[name].iloc[1] for name in significance.PAIRED)
    return bool(together and frame[intervals].notna().all(axis=None))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"= {value:.4f}"
