"""Candidate against baseline: has any cell become worse than it may, or got lost?"""

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
from mlflow_ngraph.analysis.compare import ALIKE
from mlflow_ngraph.devices.registry import accelerator
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import PROFILE, Metric, is_complement
from mlflow_ngraph.tables import baselines, vocabulary
from mlflow_ngraph.verdicts import Verdict

ALPHA = 0.05
DEFAULT = ("throughput=-3%",)
"""Thresholds, where none are given."""
OF_MODEL = ("device", "workload", "mode", "threads", "batch")
"""What two engines that are compared as models share: they may be of different compilers, flags and precisions."""
COLUMNS = (
    "device", "label", "compiler_label", "precision", "batch", "metric", "outcome", "baseline", "candidate", "change",
    "ci_low", "ci_high", "p", "threshold", "reason", "cell", "baseline_study_id", "candidate_study_id",
)  # fmt: skip
"""Columns of what `gate` returns; ``change``, its interval and ``threshold`` are shares of the baseline."""
_THRESHOLD = re.compile(r"(?P<metric>\w+)=(?P<sign>[+-]?)(?P<number>\d+(\.\d+)?)\s*%")
_ROW_COLUMNS = ("device", "label", "compiler_label", "precision", "batch", "cell")


@dataclass(frozen=True)
class Threshold:
    """How much a metric may change for the worse."""

    metric: str
    share: float
    """Of the baseline: −0.03 is 3 % less, 0.05 is 5 % more."""
    unsigned: bool = False
    """Written without a sign: for the worse, whichever direction that is."""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read ``throughput=-3%``.

        Raises
        ------
        UsageError
            It is no threshold.
        """
        match = _THRESHOLD.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"{text!r} is no threshold: write METRIC=CHANGE%, such as throughput=-3% or latency_p99_ms=+5%"
            )
        share = float(match["number"]) / 100 * (-1 if match["sign"] == "-" else 1)
        return cls(match["metric"], share, not match["sign"])

    def bound(self, metric: Metric) -> float:
        """The largest change for the worse that is allowed.

        Raises
        ------
        UsageError
            The metric has no worse direction, or this is the better one.
        """
        if metric.better == "neither":
            raise UsageError(f"{self.metric} cannot be gated: neither high nor low is better")
        worse = -1 if metric.better == "higher" else 1
        if not self.unsigned and self.share * worse < 0:
            sign = "negative: -3%" if worse < 0 else "positive: +3%"
            raise UsageError(f"threshold of {self.metric}: {metric.better} is better, so what is allowed is {sign}")
        return worse * abs(self.share)


@dataclass(frozen=True)
class Side:
    """What is compared: rows of the tidy table, or of a file that `compare` wrote."""

    name: str
    """As the user wrote it; behind the name of a study which one was taken."""
    frame: pd.DataFrame
    model: bool = False
    """Whether it is one engine, to be compared with another whatever compiled it."""


def gate(
    candidate: Side,
    baseline: Side,
    thresholds: Sequence[Threshold] = (),
    *,
    across_machines: bool = False,
    history: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Compare every ``ok`` cell of the baseline with that of the candidate.

    A cell fails where the change lies beyond the threshold and Holm's method, over all cells and metrics together, rejects
    that nothing changed; a metric without an interval, where it lies beyond. It fails as well where the candidate lacks it,
    or where it is no longer ``ok``.

    Parameters
    ----------
    candidate, baseline : Side
        Of a cell that was measured several times the latest study counts.
    thresholds : Sequence[Threshold]
        `DEFAULT` when left out.
    across_machines : bool
        Compare also what was measured on different machines; threads then need not be equal.
    history : pd.DataFrame | None
        All that is known of these machines. What its studies, but for those of the candidate, differ by without any cause is
        allowed for between two studies, where it can be told.

    Returns
    -------
    pd.DataFrame
        One row a cell and metric, with the columns of `COLUMNS`; ``outcome`` is ``passed``, ``failed``, ``missing`` (of
        the candidate), ``not ok`` (of the candidate) or ``unmeasured`` (the metric, on either side). ``attrs`` has
        ``passed``, ``tested`` (hypotheses), ``new`` (cells of the candidate alone), ``skipped`` (cells of the baseline
        that are not ``ok``), ``machines`` (of both sides), ``between_studies`` (what was allowed for, by metric), ``candidate``,
        ``baseline`` and ``thresholds``.

    Raises
    ------
    UnknownNameError
        There is no such metric.
    UsageError
        A threshold cannot be, the baseline has no ``ok`` cell, nothing can be matched, or machines differ.
    """
    asked = list(thresholds) or [Threshold.parse(text) for text in DEFAULT]
    both = pd.concat([candidate.frame, baseline.frame], ignore_index=True)
    metrics = vocabulary.known(both)
    for threshold in asked:
        if threshold.metric not in metrics:
            raise UnknownNameError("metric", threshold.metric, metrics)
    bounds = {threshold.metric: threshold.bound(metrics[threshold.metric]) for threshold in asked}
    keys = _keys(candidate, baseline, across_machines)
    count = len(candidate.frame)
    new, old = _latest(both, np.arange(count), keys), _latest(both, np.arange(count, len(both)), keys)
    trusted = (both["verdict"] == str(Verdict.OK)).to_numpy(bool)
    if not trusted[old].any():
        raise UsageError(f"the baseline {baseline.name} has no ok cell to compare with")
    matches = _matches(both, new, old[trusted[old]], keys, across_machines)
    between = _between(history, candidate, set(both["device"].dropna()) if "device" in both else set(), bounds)
    rows = _judged(both, matches, trusted, bounds, metrics, between)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    order = {"failed": 0, "not ok": 1, "missing": 2, "unmeasured": 3, "passed": 4}
    size = pd.to_numeric(table["change"]).abs().fillna(0.0)
    ranked = np.lexsort((-size.to_numpy(float), table["outcome"].map(order).to_numpy(int)))
    judged: pd.DataFrame = table.iloc[ranked].reset_index(drop=True)
    marks = _marks(both, keys)
    known = {marks[place] for place in old}
    judged.attrs = {
        "passed": bool((judged["outcome"] == "passed").all()),
        "tested": int(judged["p"].notna().sum()),
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
    return judged


def _between(
    history: pd.DataFrame | None, candidate: Side, devices: Collection[str], metrics: Collection[str]
) -> dict[str, dict[Machine, Between]]:
    """What studies differ by, of each metric; a change that is to be found is not to count as such."""
    if history is None or "study_id" not in history or "study_id" not in candidate.frame:
        return {name: {} for name in metrics}
    earlier = history[~history["study_id"].isin(set(candidate.frame["study_id"].dropna()))]
    return {name: between_studies.of_machines(earlier, devices, name) for name in metrics}


def _keys(candidate: Side, baseline: Side, across_machines: bool) -> list[str]:
    """The columns by which cells of both sides are the same."""
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
    """What of its machine each row was computed on: a machine is told by its fingerprint, not by a profile."""
    profiles = both["device"] if PROFILE not in both else both[PROFILE].fillna(both["device"])
    return profiles.map({name: accelerator(str(name)) for name in profiles.dropna().unique()})


def _latest(both: pd.DataFrame, places: NDArray[Any], keys: Sequence[str]) -> NDArray[np.int64]:
    """Of each cell on each machine the row of the latest study, in the order of time."""
    marks = _marks(both, [*keys, "fingerprint"])
    started = both["started_at"].to_numpy(float, na_value=0.0) if "started_at" in both else np.zeros(len(both))
    newest: dict[tuple[str, ...], int] = {}
    for place in places[np.argsort(started[places], kind="stable")]:
        newest[marks[place]] = int(place)
    return np.array(sorted(newest.values(), key=lambda place: (started[place], place)), np.int64)


def _matches(
    both: pd.DataFrame, new: NDArray[np.int64], old: NDArray[np.int64], keys: Sequence[str], across_machines: bool
) -> list[tuple[int, int | None]]:
    """The cells of the baseline, each with that of the candidate."""
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


def _judged(
    both: pd.DataFrame,
    matches: Sequence[tuple[int, int | None]],
    trusted: NDArray[np.bool_],
    bounds: Mapping[str, float],
    metrics: Mapping[str, Metric],
    between: Mapping[str, Mapping[Machine, Between]],
) -> list[dict[str, Any]]:
    """A row for each cell and metric."""
    rows: list[dict[str, Any]] = []
    pairs = [(old, new) for old, new in matches if new is not None and trusted[new]]
    for old, new in matches:
        if new is None or not trusted[new]:
            rows.append({**_about(both, old, new), **_lost(both, new)})
    if not pairs:
        return rows
    bottoms, tops = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    plainly = {name: significance.ratios(both, name, tops, bottoms) for name in bounds}
    ratios = {
        name: between_studies.allowed_for(ratio, both, tops, bottoms, between[name]) for name, ratio in plainly.items()
    }
    adjusted = significance.holm(np.concatenate([ratios[name].p_differs() for name in bounds]))
    for column, name in enumerate(bounds):
        own = adjusted[column * len(pairs) : (column + 1) * len(pairs)]
        for place, (old, new) in enumerate(pairs):
            values = float(both[name].iloc[old]), float(both[name].iloc[new])
            verdict = _verdict(
                values, _changes(ratios[name], place, values, name), own[place], bounds[name], metrics[name]
            )
            if baselines.differ(both, metrics[name], [old], [new]).any():
                verdict = _of_other_baselines(values, tuple(baselines.labels(both.iloc[[old, new]])), name)
            rows.append({**_about(both, old, new), "metric": name, "threshold": bounds[name], **verdict})
    return rows


def _changes(ratios: Estimate, place: int, values: tuple[float, float], name: str) -> tuple[float, float, float]:
    """The change as a share of the baseline, with its interval."""
    old, new = values
    plain = new / old - 1 if old else np.nan
    if not np.isfinite(ratios.error[place]) or is_complement(name):
        return plain, np.nan, np.nan
    low, high = (float(end[0]) for end in ratios.take([place]).interval())
    return float(ratios.value[place]) - 1, low - 1, high - 1


def _verdict(
    values: tuple[float, float], changes: tuple[float, float, float], p_value: float, bound: float, metric: Metric
) -> dict[str, Any]:
    """What became of one number."""
    figures = {"baseline": values[0], "candidate": values[1], "change": changes[0], "ci_low": changes[1], "ci_high": changes[2],
               "p": float(p_value)}  # fmt: skip
    if np.isnan(changes[0]):
        sides = " and ".join(
            side for side, value in zip(("baseline", "candidate"), values, strict=True) if np.isnan(value)
        )
        return {**figures, "outcome": "unmeasured", "reason": f"no {metric.name} of {sides or 'a zero baseline'}"}
    beyond = changes[0] < bound if metric.better == "higher" else changes[0] > bound
    if not beyond:
        return {**figures, "outcome": "passed", "reason": ""}
    if np.isnan(p_value):
        return {
            **figures,
            "outcome": "failed",
            "reason": "beyond the threshold; it has no interval, so chance is not ruled out",
        }
    if p_value < ALPHA:
        return {
            **figures,
            "outcome": "failed",
            "reason": f"beyond the threshold, and more than chance (p = {p_value:.2g})",
        }
    return {
        **figures,
        "outcome": "passed",
        "reason": f"beyond the threshold, but chance explains it (p = {p_value:.2g})",
    }


def _of_other_baselines(values: tuple[float, float], over: tuple[str, ...], metric: str) -> dict[str, Any]:
    """Ratios that refer to different lanes are different figures."""
    before, now = over
    reason = f"{metric} is over {before} in the baseline and over {now} in the candidate: these are different figures"
    nothing = dict.fromkeys(("change", "ci_low", "ci_high", "p"), np.nan)
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
