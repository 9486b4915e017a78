"""The best measured engine for a purpose that fits this machine, from the tidy table of results.

Cells are put in the order of an objective. What they would need is in the manifests of their engines, which are small:
the first one whose engine fits this machine is the answer, and of those before it the reason is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.errors import EngineError, TrackingError, UnknownNameError, UsageError
from mlflow_ngraph.tracking import download, signatures
from mlflow_ngraph.tracking.schema import CELL_METRICS
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph.tracking.download import Remote

OBJECTIVES = {
    "throughput": "throughput",
    "latency": "latency_p50_ms",
    "cpu": "cpu_percent",
    "memory": "peak_memory_mb",
    "energy": "energy_per_sample_j",
    "size": "engine_size_mb",
}
"""Metrics by the short names of what one wants to have much or little of."""
LIMITS = {
    "max_latency_ms": "latency_p99_ms",
    "max_cpu_percent": "cpu_percent",
    "max_memory_mb": "peak_memory_mb",
    "min_throughput": "throughput",
}
"""Metrics by the names of their bounds."""
FIGURES = ("throughput", "latency_p50_ms", "latency_p99_ms", "cpu_percent", "peak_memory_mb", "speedup")
"""What is told of an engine beside the objective."""
_IDENTITY = (
    "study_id", "study", "device", "fingerprint", "workload", "label", "compiler", "compiler_label", "precision",
    "precision_in_force", "batch", "verdict", "cell", "model_id", "started_at", "finished_at", "tracking_uri",
)  # fmt: skip
_AT_ONCE = 8
_REASONS = 4
"""Reasons that a message names."""


@dataclass(frozen=True)
class Question:
    """What one wants."""

    objective: str = "throughput"
    """A key of `OBJECTIVES`, or the name of a metric of which high or low is better."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Bounds that a cell has to keep, by the keys of `LIMITS`."""

    @property
    def metric(self) -> str:
        """The name of the metric.

        Raises
        ------
        UnknownNameError: there is none of this name.
        UsageError: neither high nor low is better.
        """
        name = OBJECTIVES.get(self.objective, self.objective)
        if name not in CELL_METRICS:
            raise UnknownNameError("objective", name, [*OBJECTIVES, *CELL_METRICS])
        if CELL_METRICS[name].better == "neither":
            raise UsageError(f"neither a high nor a low {name} is better: choose one of {', '.join(OBJECTIVES)}")
        return name

    @property
    def ascending(self) -> bool:
        """Whether low is better."""
        return CELL_METRICS[self.metric].better == "lower"

    def columns(self) -> list[str]:
        """The columns of the tidy table that are looked at, here and by filters."""
        from mlflow_ngraph.analysis.selection import FILTERED

        filtered = [name for names in FILTERED.values() for name in names]
        metrics = [self.metric, *FIGURES, *(LIMITS[name] for name in self.limits)]
        ends = [f"{name}{end}" for name in metrics for end in ("", "_ci_low", "_ci_high")]
        return list(dict.fromkeys([*_IDENTITY, *filtered, *(name for name in ends if name in CELL_METRICS)]))

    def keeps(self, frame: pd.DataFrame, name: str) -> pd.Series[bool]:
        """Which cells keep a bound; one without the figure does not."""
        values = frame[LIMITS[name]]
        return values >= self.limits[name] if name.startswith("min_") else values <= self.limits[name]


@dataclass(frozen=True)
class Candidate:
    """An engine at a batch size, with what was measured."""

    row: Mapping[str, Any]
    """The cell's row of the tidy table, with None where there is nothing."""
    metric: str
    """The objective."""

    @property
    def model_id(self) -> str:
        """The LoggedModel."""
        return str(self.row["model_id"])

    @property
    def name(self) -> str:
        """For people."""
        row = self.row
        return f"{row['label']} by {row['compiler_label']}, {row['precision']}, batch {row['batch']}"

    @property
    def value(self) -> float:
        """The figure of the objective."""
        return float(self.row[self.metric])

    def figure(self, metric: str) -> tuple[float, float | None, float | None] | None:
        """A figure and the ends of its interval, as far as it has one; None where it was not measured."""
        value = self.row.get(metric)
        if value is None:
            return None
        return value, self.row.get(f"{metric}_ci_low"), self.row.get(f"{metric}_ci_high")


@dataclass(frozen=True)
class Answer:
    """The engine, and why it and no other one."""

    chosen: Candidate
    remote: Remote
    manifest: Manifest
    passed_over: tuple[tuple[Candidate, str], ...]
    """Those that would have been better, best first, with the reason."""
    next_best: Candidate | None
    """The best of the other engines behind it, which nobody has looked at."""
    considered: int
    """Cells that are ok, have an engine and keep all bounds."""
    left_out: Mapping[str, int]
    """Cells that do not count, by why."""


def answer(
    frame: pd.DataFrame, question: Question, servers: Mapping[str, str], rules: Rules = trusting.EVERYTHING
) -> Answer:
    """The first engine in the order of the objective that is trusted and fits this machine.

    Parameters
    ----------
    frame: the cells that may be taken, of one model; of each the newest result counts.
    servers: tracking URIs by the names that the table has for them, which lack passwords.
    rules: whom to believe.

    Raises
    ------
    UsageError: the cells are of several models, or no cell is ok, has an engine and keeps all bounds; says what there
        is.
    EngineError: none of their engines fits this machine; says why not, and how to build one.
    """
    models = sorted(frame["workload"].dropna().unique())
    if len(models) > 1:
        raise UsageError(f"engines of several models fit: name one with --workloads: {', '.join(models)}")
    ranked, left_out = rank(frame, question)
    found: list[tuple[Candidate, str]] = []
    first: Manifest | None = None
    for candidate, remote, manifest, reason in _looked_at(ranked, servers, rules):
        if not reason and remote is not None and manifest is not None:
            behind = [one for one in ranked[len(found) + 1 :] if one.model_id != candidate.model_id]
            return Answer(
                candidate, remote, manifest, tuple(found), behind[0] if behind else None, len(ranked), left_out
            )
        first = first or manifest
        found.append((candidate, reason))
    raise EngineError(_none(found, first))


def rank(frame: pd.DataFrame, question: Question) -> tuple[list[Candidate], dict[str, int]]:
    """The cells that count, best first, and how many do not, by why.

    Where figures are equal the newer one comes first.

    Raises
    ------
    UsageError: none counts; says what there is.
    """
    from mlflow_ngraph.analysis.compare import latest

    metric = question.metric
    newest = latest(frame)
    ok = newest[newest["verdict"] == str(Verdict.OK)]
    logged = ok[ok["model_id"].notna()]
    measured = logged[logged[metric].notna()]
    kept = measured
    for name in question.limits:
        kept = kept[question.keeps(kept, name)]
    left_out = Counter({str(name): int(count) for name, count in newest["verdict"].value_counts().items()})
    del left_out[str(Verdict.OK)]
    for why, more, less in (
        ("without an engine on the server", ok, logged),
        (f"without {metric}", logged, measured),
        ("beyond a bound", measured, kept),
    ):
        if len(more) > len(less):
            left_out[why] = len(more) - len(less)
    if kept.empty:
        raise UsageError(_nothing(measured, question, left_out))
    ordered = kept.sort_values(
        [metric, "started_at", "model_id", "batch"], ascending=[question.ascending, False, True, True], kind="stable"
    )
    rows = ordered.astype(object).where(ordered.notna(), None).to_dict("records")
    return [Candidate(row, metric) for row in rows], dict(left_out)


def _nothing(measured: pd.DataFrame, question: Question, left_out: Mapping[str, int]) -> str:
    """Why no cell counts."""
    counted = ", ".join(f"{count} {why}" for why, count in left_out.items())
    if measured.empty:
        return f"no cell that fits is ok and has an engine: {counted or 'there is none'}"
    said = []
    for name in question.limits:
        column = measured[LIMITS[name]]
        best = column.max() if name.startswith("min_") else column.min()
        keeping = int(question.keeps(measured, name).sum())
        option = f"--{name.replace('_', '-')} {question.limits[name]:g}"
        best_known = "was not measured" if best != best else f"is {best:.4g} at best"  # noqa: PLR0124 - NaN
        said.append(f"{option} alone is kept by {keeping} of {len(measured)}, {LIMITS[name]} {best_known}")
    return f"no engine keeps all bounds: {'; '.join(said)}"


def _looked_at(
    ranked: Sequence[Candidate], servers: Mapping[str, str], rules: Rules
) -> Iterator[tuple[Candidate, Remote | None, Manifest | None, str]]:
    """Candidates in their order, with what is known of their engines and why they do not fit, if they do not.

    The first engine mostly is the one. If it is not, several manifests are brought at the same time.
    """
    known: dict[str, tuple[Remote | None, Manifest | None, str]] = {}
    without = {name: compatibility.absent(name) for name in {str(one.row["compiler"]) for one in ranked}}
    possible = list(dict.fromkeys(
        (one.model_id, str(one.row["tracking_uri"])) for one in ranked if not without[str(one.row["compiler"])]
    ))  # fmt: skip
    waiting = iter(_windows(possible))
    with ThreadPoolExecutor(_AT_ONCE, "ngraph-manifest") as pool:
        for candidate in ranked:
            absent = without[str(candidate.row["compiler"])]
            if absent:
                yield candidate, None, None, absent
                continue
            while candidate.model_id not in known:
                window = next(waiting)
                looked = pool.map(lambda one: _look(one[0], servers.get(one[1], one[1]), rules), window)
                known.update(zip((one[0] for one in window), looked, strict=True))
            yield candidate, *known[candidate.model_id]


def _windows(items: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    yield items[:1]
    for start in range(1, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


def _look(model_id: str, tracking_uri: str, rules: Rules) -> tuple[Remote | None, Manifest | None, str]:
    try:
        remote = download.of_id(model_id, tracking_uri)
        manifest, content = download.manifest(remote)
        trusting.require(content, signatures.fetch(remote), tracking_uri, rules)
    except (EngineError, TrackingError) as error:  # one that is gone is no reason to do without the others
        return None, None, str(error)
    return remote, manifest, compatibility.misfit(manifest)


def _none(found: Sequence[tuple[Candidate, str]], best: Manifest | None) -> str:
    """Why no engine fits, and what to do."""
    reasons: dict[str, list[Candidate]] = {}
    for candidate, reason in found:
        reasons.setdefault(reason, []).append(candidate)
    said = [
        f"{len(those)} of {', '.join(sorted({str(one.row['compiler_label']) for one in those}))}: {reason}"
        for reason, those in list(reasons.items())[:_REASONS]
    ]
    more = f"; and {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
    todo = f"; {compatibility.rebuild(best)}" if best is not None else ""
    return f"no engine of {len(found)} that were measured fits this machine: {'; '.join(said)}{more}{todo}"
