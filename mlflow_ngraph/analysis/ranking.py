"""Rank measured engines of one model by an objective under limits, with ties, rivals and reasons of exclusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import objectives
from mlflow_ngraph.analysis.undecided import Rival
from mlflow_ngraph.errors import NoAnswerError, UsageError
from mlflow_ngraph.metrics import BEATEN_BY, CELL_METRICS, COLUMNS, FOREIGN, TABLE, with_estimates
from mlflow_ngraph.objectives import SECOND, Limit
from mlflow_ngraph.text import rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("throughput", "latency_p50_ms", "latency_p99_ms", "cpu_percent", "peak_memory_mb", "speedup")
"""Figures shown besides the objective."""
_IDENTITY = (
    "study_id", "study", "device", "fingerprint", "workload", "label", "compiler", "compiler_label", "precision",
    "precision_in_force", "batch", "mode", "threads", "verdict", "reason", "cell", "model_id", "started_at", "finished_at",
    "tracking_uri", "experiment", "user", "rounds", "repetitions", "load_s", "first_inference_s", "run_id", "engine", "baseline", "unsteady", *SECOND, BEATEN_BY, FOREIGN,
)  # fmt: skip


@dataclass(frozen=True)
class EngineQuestion:
    """Objective and limits for choosing an engine."""

    objective: str = "throughput"
    """Key of `OBJECTIVES`, or a metric with a better direction."""
    limits: tuple[Limit, ...] = ()

    @property
    def metric(self) -> str:
        """Name of the metric. Raises `UnknownNameError` if there is none, `UsageError` if no end of it is better."""
        return objectives.objective(self.objective).name

    @property
    def ascending(self) -> bool:
        return CELL_METRICS[self.metric].better == "lower"

    def columns(self) -> list[str]:
        """Needed columns of the tidy table, including those of filters."""
        from mlflow_ngraph.analysis.selection import FILTER_COLUMNS

        metrics = [self.metric, *FIGURES, *(limit.metric for limit in self.limits)]
        estimates = [name for name in with_estimates(metrics) if name in TABLE]
        return list(dict.fromkeys([*_IDENTITY, *FILTER_COLUMNS, *estimates]))


@dataclass(frozen=True)
class Candidate:
    """An engine at a batch size, with its measurement."""

    row: Mapping[str, Any]
    """Row of the tidy table, with None for missing values."""
    metric: str
    """Metric of the objective."""

    @property
    def model_id(self) -> str:
        return str(self.row["model_id"])

    @property
    def name(self) -> str:
        row = self.row
        return f"{row['label']} by {row['compiler_label']}, {row['precision']}, batch {row['batch']}"

    @property
    def value(self) -> float:
        return float(self.row[self.metric])

    def figure(self, metric: str) -> tuple[float, float | None, float | None] | None:
        """A figure with the ends of its interval; None where it was not measured."""
        value = self.row.get(metric)
        if value is None:
            return None
        return value, self.row.get(f"{metric}_ci_low"), self.row.get(f"{metric}_ci_high")


@dataclass(frozen=True)
class Ranking:
    """Eligible cells, best first."""

    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, int]
    """Number of excluded cells by reason."""
    unsure: tuple[Mapping[str, Any], ...]
    """Excluded rows that keep all bounds and could be better than they look."""
    rivals: tuple[Rival, ...]
    """Cells that could beat the first candidate."""
    tied: tuple[str, ...]
    """Cells of candidates that are not significantly different from the first one."""

    def rivals_of(self, place: int) -> tuple[Rival, ...]:
        """Cells that could beat a candidate, without those ranked before it."""
        if place == 0:
            return self.rivals
        return _rivals(
            [*(candidate.row for candidate in self.candidates[place:]), *self.unsure], self.candidates[place].metric
        )

    def to_plain(self) -> dict[str, Any]:
        return {
            "metric": self.candidates[0].metric,
            "rows": [dict(candidate.row) for candidate in self.candidates],
            "left_out": dict(self.left_out),
            "unsure": [dict(row) for row in self.unsure],
            "rivals": [rival.to_plain() for rival in self.rivals],
            "tied": list(self.tied),
        }

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Ranking:
        metric = str(content["metric"])
        rivals = tuple(Rival(**rival) for rival in content["rivals"])
        candidates = tuple(Candidate(row, metric) for row in content["rows"])
        tied = tuple(map(str, content["tied"]))
        return cls(candidates, dict(content["left_out"]), tuple(content["unsure"]), rivals, tied)


def rank(frame: pd.DataFrame, question: EngineQuestion) -> Ranking:
    """Rank the eligible cells, best first; among equals the newest first.

    ``frame`` has candidate cells of one model; the newest result of each counts. Raises `UsageError` if the cells are
    of several models, and `NoAnswerError`, which says what there is, if no cell is ok, has an engine and keeps all
    bounds.
    """
    import numpy as np

    from mlflow_ngraph.analysis.compare import latest
    from mlflow_ngraph.analysis.comparison import Comparison
    from mlflow_ngraph.analysis.rivals import rivals_of
    from mlflow_ngraph.tables import distinct

    models = sorted(frame.loc[frame["model_id"].notna(), "workload"].dropna().unique())
    if several := list(distinct.several_models(frame)):
        raise UsageError(several[0])
    if len(models) > 1:
        raise UsageError(f"engines of several models fit: name one with --workloads: {', '.join(models)}")
    newest = latest(frame)
    compared = Comparison(newest, CELL_METRICS[question.metric])
    ok = (newest["verdict"] == str(Verdict.OK)).to_numpy(bool)
    logged = ok & newest["model_id"].notna().to_numpy(bool)
    measured = logged & newest[question.metric].notna().to_numpy(bool)
    several = measured & compared.ranks
    within = np.logical_and.reduce([np.ones(len(newest), bool), *(limit.kept(newest) for limit in question.limits)])
    kept = several & within
    left_out = Counter({str(name): int(count) for name, count in newest["verdict"].value_counts().items()})
    del left_out[str(Verdict.OK)]
    for why, more, less in (
        ("without an engine on the server", ok, logged),
        (f"without {question.metric}", logged, measured),
        ("without an interval", measured, several),
        ("beyond a bound", several, kept),
    ):
        if more.sum() > less.sum():
            left_out[why] = int(more.sum() - less.sum())
    if not kept.any():
        raise NoAnswerError(_nothing(newest[several], question, left_out))
    lead = compared.leader(np.flatnonzero(kept))
    ordered = newest.assign(place=np.arange(len(newest)), led=np.arange(len(newest)) != lead)[kept].sort_values(
        ["led", question.metric, "started_at", "model_id", "batch"],
        ascending=[True, question.ascending, False, True, True],
        kind="stable",
    )["place"].to_numpy(int)  # fmt: skip
    unsure = np.flatnonzero(compared.unranked & (within | compared.skipped))
    candidates = tuple(Candidate(row, question.metric) for row in _plain(newest.iloc[ordered]))
    could = rivals_of(compared, lead, np.concatenate([ordered, unsure]))
    tied = tuple(newest["cell"].iloc[ordered[compared.tied(lead, ordered)]].astype(str))
    return Ranking(candidates, dict(left_out), tuple(_plain(newest.iloc[unsure])), could, tied)


def _rivals(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[Rival, ...]:
    import pandas as pd

    from mlflow_ngraph.analysis.comparison import Comparison
    from mlflow_ngraph.analysis.rivals import rivals_of
    from mlflow_ngraph.tables.columns import typed

    return rivals_of(Comparison(typed(pd.DataFrame(map(dict, rows)), COLUMNS), CELL_METRICS[metric]), 0)


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def _nothing(measured: pd.DataFrame, question: EngineQuestion, left_out: Mapping[str, int]) -> str:
    counted = ", ".join(f"{count} {why}" for why, count in left_out.items())
    if measured.empty:
        return f"no cell that fits is ok and has an engine: {counted or 'there is none'}"
    said = []
    for limit in question.limits:
        column = measured[limit.metric]
        best = column.max() if limit.bound == "min" else column.min()
        keeping = int(limit.kept(measured).sum())
        best_known = "was not measured" if best != best else f"is {rounded(best)} at best"  # noqa: PLR0124 - NaN
        said.append(
            f"{objectives.option(limit)} alone is kept by {keeping} of {len(measured)}, {limit.metric} {best_known}"
        )
    return f"no engine keeps all bounds: {'; '.join(said)}"
