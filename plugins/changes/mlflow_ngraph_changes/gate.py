"""Judge a candidate's cells by a baseline's, with thresholds and tests: passed, failed, missing, could not tell."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import between_studies, significance
from mlflow_ngraph.analysis.between_studies import Between, Machine
from mlflow_ngraph.analysis.compare import ALIKE, latest
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.devices.registry import accelerator
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import PROFILE, Metric, is_complement
from mlflow_ngraph.tables import baselines, distinct
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.text import rounded
from mlflow_ngraph.verdicts import Verdict

ALPHA = 0.02
"""Two-sided level; one gate in a hundred finds a loss by chance."""
DEFAULT = -0.03
"""Default threshold for the speed-up; for the throughput where cells have no speed-up."""
PASSED, FAILED, COULD_NOT_TELL = "passed", "failed", "could not tell"
"""Outcomes of a comparison and of the gate."""
_NEARLY_ALL = 0.99
"""Share of a figure: a fall by more than this would have to happen before it is noticed."""
OF_MODEL = ("device", "workload", "mode", "threads", "batch")
"""Columns that match two engines compared as models. Compiler, flags and precision may differ."""
COLUMNS = (
    "device", "label", "compiler_label", "precision", "batch", "metric", "outcome", "baseline", "candidate", "change",
    "ci_low", "ci_high", "p", "notices", "threshold", "reason", "cell", "baseline_study_id", "candidate_study_id",
)  # fmt: skip
"""Columns of `gate`. ``change``, its interval, ``notices`` (smallest loss detected in 95 of 100 cases) and
``threshold`` are shares of the baseline."""
_THRESHOLD = re.compile(r"(?P<metric>\w+)=(?P<sign>[+-]?)(?P<number>\d+(\.\d+)?)\s*%")
_PREFERRED = ("speedup", "throughput")
"""Default metrics: the first that both sides have. Speed-ups are the least affected by load on the machine."""
_ROW_COLUMNS = ("device", "label", "compiler_label", "precision", "batch", "cell")


@dataclass(frozen=True)
class Threshold:
    """Largest loss allowed for a metric."""

    metric: str
    share: float
    """Share of the baseline: −0.03 is 3 % less, 0.05 is 5 % more."""
    unsigned: bool = False
    """Written without a sign, so that the metric gives the direction."""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read ``throughput=-3%``."""
        match = _THRESHOLD.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text!r} is no threshold: write METRIC=CHANGE%, such as throughput=-3% or latency_p99_ms=+5%"
            )
        share = float(match["number"]) / 100 * (-1 if match["sign"] == "-" else 1)
        return cls(match["metric"], share, not match["sign"])

    def bound(self, metric: Metric) -> float:
        """Largest allowed loss with its sign.

        Raises `UsageError` if the metric has no worse direction, or this is the better one.
        """
        if metric.better == "neither":
            raise UsageError(f"{self.metric} cannot be gated: neither high nor low is better")
        worse = -1 if metric.better == "higher" else 1
        if not self.unsigned and self.share * worse < 0:
            sign = "negative: -3%" if worse < 0 else "positive: +3%"
            raise UsageError(f"threshold of {self.metric}: {metric.better} is better, so what is allowed is {sign}")
        if worse < 0 and abs(self.share) >= 1:
            raise UsageError(
                f"threshold of {self.metric}: no loss is greater than 100 %, so that the gate would always pass"
            )
        return worse * abs(self.share)


@dataclass(frozen=True)
class Side:
    """Side of a comparison: rows of the tidy table, or of a file from `compare`."""

    name: str
    """Name as given by the user, with the chosen study."""
    frame: pd.DataFrame
    model: bool = False
    """A single engine, compared across compilers."""


def gate(
    candidate: Side,
    baseline: Side,
    thresholds: Sequence[Threshold] = (),
    *,
    across_machines: bool = False,
    history: pd.DataFrame | None = None,
) -> Described:
    """Compare every ``ok`` cell of the baseline with the candidate's.

    A cell fails if its loss exceeds the threshold and Holm's method over all cells and metrics rejects equality. For
    metrics without intervals the loss alone decides. A cell also fails if the candidate lacks it, or if it is not
    ``ok`` there. The gate cannot tell if nothing fails but a loss as large as the threshold could be missed. Exact
    figures, such as the baseline's own speed-up, are not compared.

    The latest study of each cell counts. The thresholds are by default `DEFAULT` for the speed-up, or for the
    throughput where a side lacks speed-ups. ``across_machines`` compares results of different machines, too; threads
    may then differ. ``history`` are all known results of these machines. They give the variance between studies; the
    candidate's own studies do not count.

    Returns one row per cell and metric, with the columns of `COLUMNS`. ``outcome`` is ``passed``, ``failed``, ``could
    not tell``, ``missing`` (in the candidate), ``not ok`` (in the candidate) or ``unmeasured`` (on either side).
    ``about`` has: ``outcome`` (of the gate), ``tested`` (number of hypotheses), ``common`` (number of cells of both
    sides), ``labels`` (models of both sides), ``changed`` (those with other weights or code), ``new`` (number of cells
    of the candidate alone), ``skipped`` (number of cells that are not ``ok`` in the baseline), ``machines`` (of both
    sides), ``between_studies`` (variance between studies by metric), ``candidate``, ``baseline`` and ``thresholds``.

    Raises `UnknownNameError` if there is no such metric, and `UsageError` if a threshold cannot be, the baseline has no
    ``ok`` cell, nothing can be matched or compared, or machines differ.
    """
    both = pd.concat([candidate.frame, baseline.frame], ignore_index=True)
    both = distinct.by_name(both) if "workload" in both else both
    metrics = metrics_of(both)
    preferred = [name for name in _PREFERRED if name in metrics]
    asked = list(thresholds) or [Threshold(name, DEFAULT) for name in preferred]
    require_known("metric", (threshold.metric for threshold in asked), metrics)
    bounds = {threshold.metric: threshold.bound(metrics[threshold.metric]) for threshold in asked}
    keys = _keys(candidate, baseline, across_machines)
    count = len(candidate.frame)
    new, old = _latest(both, np.arange(count), keys), _latest(both, np.arange(count, len(both)), keys)
    trusted = (both["verdict"] == str(Verdict.OK)).to_numpy(bool)
    if not trusted[old].any():
        raise UsageError(f"the baseline {baseline.name} has no ok cell to compare with")
    matches = _matches(both, new, old[trusted[old]], keys, across_machines)
    between = _between(history, candidate, set(both["device"].dropna()) if "device" in both else set(), bounds)
    rows = _judged(both, matches, trusted, bounds, metrics, between, preferred=not thresholds)
    if not rows:
        raise UsageError(
            f"nothing can be compared by {' and '.join(bounds)}: it is exact by definition, as of a baseline"
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    order = {FAILED: 0, "not ok": 1, "missing": 2, "unmeasured": 3, COULD_NOT_TELL: 4, PASSED: 5}
    size = pd.to_numeric(table["change"]).abs().fillna(0.0)
    ranked = np.lexsort((-size.to_numpy(float), table["outcome"].map(order).to_numpy(int)))
    judged: pd.DataFrame = table.iloc[ranked].reset_index(drop=True)
    marks = _marks(both, keys)
    known = {marks[place] for place in old}
    outcomes = set(judged["outcome"])
    about = {
        "outcome": FAILED if outcomes - {PASSED, COULD_NOT_TELL} else min(outcomes, key=order.__getitem__),
        "common": sum(match is not None for _, match in matches),
        "labels": {side: sorted(both["label"].iloc[places].dropna().unique()) if "label" in both else []
                   for side, places in (("candidate", new), ("baseline", old))},
        "tested": int(judged["p"].notna().sum()),
        "changed": _changed(both, matches),
        "new": sum(marks[place] not in known for place in new),
        "skipped": int((~trusted[old]).sum()),
        "machines": {side: sorted(both["fingerprint"].iloc[places].fillna("unknown").unique())
                     for side, places in (("candidate", new), ("baseline", old))},
        "between_studies": [{"metric": name, **known.to_plain(machine)}
                            for name, machines in between.items() for machine, known in machines.items()],
        "candidate": candidate.name,
        "baseline": baseline.name,
        "thresholds": {name: float(bound) for name, bound in bounds.items()},
    }  # fmt: skip
    return Described(judged, about)


def _between(
    history: pd.DataFrame | None, candidate: Side, devices: Collection[str], metrics: Collection[str]
) -> dict[str, dict[Machine, Between]]:
    """Variance between studies by metric. The candidate is excluded, because its change must not count as variance."""
    if history is None or "study_id" not in history or "study_id" not in candidate.frame:
        return {name: {} for name in metrics}
    earlier = distinct.by_name(history[~history["study_id"].isin(set(candidate.frame["study_id"].dropna()))])
    return {name: between_studies.of_machines(earlier, devices, name) for name in metrics}


def _keys(candidate: Side, baseline: Side, across_machines: bool) -> list[str]:
    frames = (candidate.frame, baseline.frame)
    names: Sequence[str] = OF_MODEL if candidate.model and baseline.model else ALIKE
    if all(set(names) <= set(frame.columns) for frame in frames):
        return [name for name in names if not (across_machines and name == "threads")]
    if all("cell" in frame.columns for frame in frames):
        return ["cell"]
    raise UsageError(
        "these files do not say which cells their numbers are of: use results.parquet, or compare --output FILE.json"
    )


def _marks(both: pd.DataFrame, keys: Sequence[str]) -> list[tuple[str, ...]]:
    columns = (_accelerators(both) if name == "device" else both[name] for name in keys)
    return list(zip(*(column.astype("string").fillna("") for column in columns), strict=True))


def _accelerators(both: pd.DataFrame) -> pd.Series[str]:
    """Accelerator of each row. The fingerprint identifies the machine, not the profile."""
    profiles = both["device"] if PROFILE not in both else both[PROFILE].fillna(both["device"])
    return profiles.map({name: accelerator(str(name)) for name in profiles.dropna().unique()})


def _latest(both: pd.DataFrame, places: NDArray[Any], keys: Sequence[str]) -> NDArray[np.int64]:
    """Places of the latest result of each cell, the oldest first."""
    started = both["started_at"].to_numpy(float, na_value=0.0) if "started_at" in both else np.zeros(len(both))
    rows = pd.DataFrame({"started_at": started, "finished_at": started, "verdict": both["verdict"]})
    rows["mark"] = _marks(both, [*keys, "fingerprint"])
    newest = latest(rows.iloc[places], ["mark"]).sort_values("started_at", kind="stable")
    return np.array(newest.index, np.int64)


def _matches(
    both: pd.DataFrame, new: NDArray[np.int64], old: NDArray[np.int64], keys: Sequence[str], across_machines: bool
) -> list[tuple[int, int | None]]:
    marks, machines = _marks(both, keys), both["fingerprint"].astype("string").fillna("").tolist()
    here = {(marks[place], machines[place]): int(place) for place in new}
    anywhere = {marks[place]: int(place) for place in new}
    if across_machines:
        return [(place, anywhere.get(mark)) for mark, place in {marks[base]: int(base) for base in old}.items()]
    matches: list[tuple[int, int | None]] = []
    for place in old:
        match = here.get((marks[place], machines[place])) if machines[place] else None
        other = anywhere.get(marks[place])
        if match is None and other is not None:
            candidate, baseline = machines[other] or "an unknown one", machines[place] or "an unknown one"
            raise UsageError(
                f"the candidate was measured on another machine ({candidate}) than the baseline ({baseline}): measure both on the same, "
                f"or say --across-machines if machines may differ"
            )
        matches.append((int(place), match))
    return matches


def _changed(both: pd.DataFrame, matches: Sequence[tuple[int, int | None]]) -> list[str]:
    """Labels of models whose weights or code are not those of the baseline."""
    if not {"content", "label"} <= set(both.columns):
        return []
    content = both["content"].fillna("").tolist()
    pairs = [(old, new) for old, new in matches if new is not None and content[old] and content[new]]
    return sorted({str(both["label"].iloc[old]) for old, new in pairs if content[old] != content[new]})


def _judged(
    both: pd.DataFrame,
    matches: Sequence[tuple[int, int | None]],
    trusted: NDArray[np.bool_],
    bounds: Mapping[str, float],
    metrics: Mapping[str, Metric],
    between: Mapping[str, Mapping[Machine, Between]],
    *,
    preferred: bool,
) -> list[dict[str, Any]]:
    """Judge each cell and metric; with ``preferred`` each cell only by its first comparable metric."""
    rows: list[dict[str, Any]] = []
    pairs = [(old, new) for old, new in matches if new is not None and trusted[new]]
    for old, new in matches:
        if new is None or not trusted[new]:
            rows.append({**_about(both, old, new), **_lost(both, new)})
    if not pairs:
        return rows
    compared = _preferred(both, pairs, metrics) if preferred else dict.fromkeys(bounds, pairs)
    compared = {name: _uncertain(both, name, own) for name, own in compared.items()}
    sides = {name: tuple(np.array(own, np.int64).reshape(-1, 2).T) for name, own in compared.items()}
    ratios = {
        name: between_studies.widened_between(
            Comparison(both, metrics[name]).ratios(tops, bottoms), both, tops, bottoms, between[name]
        )
        for name, (bottoms, tops) in sides.items()
    }
    p_values = [ratio.p_differs() for ratio in ratios.values()]
    adjusted = np.split(significance.holm(np.concatenate(p_values)), np.cumsum([len(own) for own in p_values])[:-1])
    tested = sum(int(np.isfinite(own).sum()) for own in p_values)
    for (name, own), p_own in zip(compared.items(), adjusted, strict=True):
        metric, notices = metrics[name], ratios[name].notices(ALPHA / max(tested, 1))
        for place, (old, new) in enumerate(own):
            values = float(both[name].iloc[old]), float(both[name].iloc[new])
            figures = {
                "baseline": values[0], "candidate": values[1], "p": float(p_own[place]),
                "notices": worse_by(notices[place], values[0], metric),
                **dict(zip(("change", "ci_low", "ci_high"), changes(ratios[name], place, values, name), strict=True)),
            }  # fmt: skip
            outcome, reason = _outcome(figures, bounds[name], metric)
            verdict: dict[str, Any] = {**figures, "outcome": outcome, "reason": reason}
            if baselines.differ(both, metric, [old], [new]).any():
                verdict = _of_other_baselines(values, tuple(baselines.labels(both.iloc[[old, new]])), name)
            rows.append({**_about(both, old, new), "metric": name, "threshold": bounds[name], **verdict})
    return rows


def _preferred(
    both: pd.DataFrame, pairs: Sequence[tuple[int, int]], metrics: Mapping[str, Metric]
) -> dict[str, list[tuple[int, int]]]:
    """Pair cells by the first default metric that both sides have."""
    left, compared = list(pairs), {}
    for name in (name for name in _PREFERRED if name in metrics):
        known = both[name].notna().to_numpy(bool)
        apart = [bool(baselines.differ(both, name, [old], [new])[0]) for old, new in left]
        has = [bool(known[old] and known[new] and not other) for (old, new), other in zip(left, apart, strict=True)]
        last = name == _PREFERRED[-1]
        compared[name] = [pair for pair, both_have in zip(left, has, strict=True) if both_have or last]
        left = [pair for pair, both_have in zip(left, has, strict=True) if not both_have]
    return compared


def _uncertain(both: pd.DataFrame, metric: str, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs without those that are exact by definition."""
    exact = significance.figures(both, metric).error == 0
    return [(old, new) for old, new in pairs if not (exact[old] and exact[new])]


def worse_by(log: float, value: float, metric: Metric) -> float:
    """Convert a logarithm to a loss as a share of the baseline."""
    if is_complement(metric.name):
        return float(np.expm1(log) * (1 - value) / abs(value)) if value else np.nan
    return float(-np.expm1(-log) if metric.better == "higher" else np.expm1(log))


def changes(ratios: Estimate, place: int, values: tuple[float, float], name: str) -> tuple[float, float, float]:
    """Change as a share of the baseline, with its interval."""
    old, new = values
    plain = new / old - 1 if old else np.nan
    if not np.isfinite(ratios.error[place]) or is_complement(name):
        return plain, np.nan, np.nan
    low, high = (float(end[0]) for end in ratios.take([place]).interval())
    return float(ratios.value[place]) - 1, low - 1, high - 1


def _outcome(figures: dict[str, float], bound: float, metric: Metric) -> tuple[str, str]:
    change, p_value, notices = figures["change"], figures["p"], figures["notices"]
    if np.isnan(change):
        sides = " and ".join(side for side in ("baseline", "candidate") if np.isnan(figures[side]))
        return "unmeasured", f"no {metric.name} of {sides or 'a zero baseline'}"
    beyond = change < bound if metric.better == "higher" else change > bound
    if np.isnan(p_value) and metric.interval != "none":
        return COULD_NOT_TELL, "one round on a side, which tells nothing"
    if beyond and np.isnan(p_value):
        return FAILED, "beyond the threshold; it has no interval, so chance is not ruled out"
    if beyond and p_value < ALPHA:
        return FAILED, f"beyond the threshold, and more than chance (p = {p_value:.2g})"
    if beyond or notices > abs(bound):
        worse = "fall" if metric.better == "higher" else "rise"
        seen = f"beyond the threshold, but chance explains it (p = {p_value:.2g}); " if beyond else ""
        least = f"it notices a {worse} of {rounded(100 * notices, 2)} % at the earliest"
        blind = "its rounds differ so much that no fall would be noticed"
        return COULD_NOT_TELL, seen + (blind if notices > _NEARLY_ALL and metric.better == "higher" else least)
    return PASSED, ""


def _of_other_baselines(values: tuple[float, float], over: tuple[str, ...], metric: str) -> dict[str, Any]:
    """Refuse ratios to different baselines."""
    before, now = over
    reason = f"{metric} is over {before} in the baseline and over {now} in the candidate: these are different figures"
    nothing = dict.fromkeys(("change", "ci_low", "ci_high", "p", "notices"), np.nan)
    return {"baseline": values[0], "candidate": values[1], **nothing, "outcome": "unmeasured", "reason": reason}


def _lost(both: pd.DataFrame, new: int | None) -> dict[str, Any]:
    if new is None:
        return {"outcome": "missing", "reason": "the candidate has no such cell"}
    reason = both["reason"].iloc[new] if "reason" in both else ""
    said = f": {' '.join(str(reason).split())}" if isinstance(reason, str) and reason else ""
    return {"outcome": "not ok", "reason": f"{both['verdict'].iloc[new]}{said}"}


def _about(both: pd.DataFrame, old: int, new: int | None) -> dict[str, Any]:
    row = both.iloc[old]
    about = {name: row[name] for name in _ROW_COLUMNS if name in both.columns}
    if "study_id" in both.columns:
        about["baseline_study_id"] = row["study_id"]
        about["candidate_study_id"] = None if new is None else both["study_id"].iloc[new]
    return about
