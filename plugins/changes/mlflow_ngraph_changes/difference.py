"""Differences between two runs: flags, versions, the machine and its state, and results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import results, significance, study_names
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.analysis.listing import Server, study_run
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.errors import TrackingError, UsageError, require_known
from mlflow_ngraph.estimates import ALPHA, WIDEST
from mlflow_ngraph.metrics import Metric, is_complement
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.text import counted, rounded
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.artifact_stores import run_file, run_files
from mlflow_ngraph.tracking.schema import Artifact, Kind, Param, Tag
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_changes.gate import changes, worse_by

ASPECTS = ("study", "flags", "versions", "machine", "state", "results")
COLUMNS = ("aspect", "name", "left", "right", "change", "ci_low", "ci_high", "p", "notices", "differs")
"""Columns of a difference; ``change`` is a share of the left side."""
STATE = ("clock_mhz", "temperature_c", "foreign_cpu_percent", "power_w")
"""State of the machine while measuring: medians over the cells of both runs."""
_STATE_MARGIN = 0.05
_LANE = ("workload", "compiler_label", "precision", "mode")


@dataclass(frozen=True)
class Run:
    """Contents of a run."""

    run_id: str
    kind: str
    """`Kind`: a study or a lane."""
    study: Mapping[str, str]
    """Keys of the study."""
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    """Fingerprint of the machine."""
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Rows of the tidy table."""
    commit: str = ""
    name: str = ""
    """Name as given by the user, with the chosen study."""


def read(named: str, tracking_uri: str | None = None) -> Run:
    """Read a study run or a lane run from a tracking server.

    ``named`` is the id of a run, or the name or id of a study; the latest one of a name counts. Raises `TrackingError`
    if the server cannot be reached or the run does not exist, and `UsageError` if it is neither of a study nor of a
    lane, or the name is ambiguous.
    """
    server = Server(tracking_uri)
    run_id, said = study_names.run_of(named, tracking_uri)
    with server.talking():
        run = server.client.get_run(run_id)
        kind = run.data.tags.get(Tag.KIND)
        if kind not in (Kind.STUDY, Kind.LANE):
            raise UsageError(f"run {run_id} is neither of a study nor of a lane: diff compares those")
        study = study_run(server.client, run_id)
        files = run_files(server.client, study.info.run_id, study.info.artifact_uri, server.uri)
        if Artifact.FINGERPRINT not in files:
            raise TrackingError(
                f"run {study.info.run_id} has no {Artifact.FINGERPRINT}: name the run of a finished study"
            )
        try:
            machine = json.loads(run_file(study.info.artifact_uri, Artifact.FINGERPRINT, server.uri))
        except (ValueError, RecursionError) as error:
            raise TrackingError(f"run {study.info.run_id}: {Artifact.FINGERPRINT} is not readable: {error}") from error
    frame = results.select(Selection(), tracking_uri, run=study.info.run_id)
    if kind == Kind.LANE:
        frame = frame[frame["lane_run_id"] == run_id].reset_index(drop=True)
    tags, params = study.data.tags, study.data.params
    return Run(
        run_id,
        str(kind),
        {name.removeprefix(Param.STUDY): value for name, value in params.items() if name.startswith(Param.STUDY)},
        schema.versions_of(tags),
        machine,
        frame,
        tags.get("mlflow.source.git.commit", ""),
        said,
    )


def difference(left: Run, right: Run, metric: str = "throughput") -> Described:
    """Compare two runs.

    Cells correspond if workload, compiler with flags, precision, mode and batch size are equal; for two lanes, if the
    batch size is. A result differs if its verdict does, or if Holm's method over all cells rejects equality.

    Returns one row per difference and per cell of both runs, with the columns of `COLUMNS`. ``about`` has ``cells``
    (number of cells of both runs), ``left_only`` and ``right_only`` (numbers of cells of one run). Raises
    `UnknownNameError` if there is no such metric, and `UsageError` if one run is of a study and the other one of a
    lane.
    """
    if left.kind != right.kind:
        raise UsageError(f"one run is of a {left.kind}, the other of a {right.kind}: name two of one kind")
    keys = ["batch"] if left.kind == Kind.LANE else [*_LANE, "batch"]
    both = pd.concat([left.frame, right.frame], ignore_index=True)
    metrics = metrics_of(both)
    require_known("metric", [metric], metrics)
    pairs = _pairs(both, len(left.frame), keys)
    rows = [
        *_unequal("study", {**left.study, "git_commit": left.commit}, {**right.study, "git_commit": right.commit}),
        *_flags(both, pairs, left.kind),
        *_unequal("versions", left.versions, right.versions),
        *_unequal("machine", _flat(left.machine), _flat(right.machine)),
        *_state(both, pairs),
        *_results(both, pairs, metrics[metric], left.kind),
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(COLUMNS))
    table["differs"] = table["differs"].astype(bool)
    about = {
        "metric": metric,
        "cells": len(pairs),
        "left_only": len(left.frame) - len(pairs),
        "right_only": len(right.frame) - len(pairs),
    }
    return Described(table, about)


def _pairs(both: pd.DataFrame, count: int, keys: Sequence[str]) -> list[tuple[int, int]]:
    marks = list(zip(*(both[name].astype("string").fillna("") for name in keys), strict=True))
    where = {mark: place for place, mark in enumerate(marks[count:], count)}
    return [(place, where[mark]) for place, mark in enumerate(marks[:count]) if mark in where]


def _unequal(aspect: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = sorted({*left, *right})
    return [
        {
            "aspect": aspect,
            "name": name,
            "left": _text(left.get(name)),
            "right": _text(right.get(name)),
            "differs": True,
        }
        for name in names
        if left.get(name) != right.get(name)
    ]


def _flags(both: pd.DataFrame, pairs: Sequence[tuple[int, int]], kind: str) -> list[dict[str, Any]]:
    """Flags with different effective values, merged over the cells of a compiler that differ alike."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for old, new in pairs:
        sides = [
            json.loads(str(text)) if pd.notna(text) else {}
            for text in (both["flags"].iloc[old], both["flags"].iloc[new])
        ]
        label = "" if kind == Kind.LANE else f"{both['compiler_label'].iloc[old]}: "
        for name in sorted({*sides[0], *sides[1]}):
            if sides[0].get(name) != sides[1].get(name):
                counts[f"{label}{name}", _text(sides[0].get(name)), _text(sides[1].get(name))] += 1
    return [
        {"aspect": "flags", "name": f"{name} ({counted(count, 'cell')})", "left": left, "right": right,
         "differs": True}
        for (name, left, right), count in counts.items()
    ]  # fmt: skip


def _state(both: pd.DataFrame, pairs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    rows = []
    for name in STATE:
        sides = [both[name].iloc[list(places)].median() for places in zip(*pairs, strict=True)] if pairs else []
        if len(sides) == 2 and all(np.isfinite(side) for side in sides):
            largest = max(map(abs, sides))
            rows.append(
                {"aspect": "state", "name": f"{name}, median", "left": rounded(sides[0]), "right": rounded(sides[1]),
                 "differs": bool(largest and abs(sides[0] - sides[1]) / largest > _STATE_MARGIN)}
            )  # fmt: skip
    return rows


def _results(both: pd.DataFrame, pairs: Sequence[tuple[int, int]], asked: Metric, kind: str) -> list[dict[str, Any]]:
    if not pairs:
        return []
    metric = asked.name
    old, new = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    ratios = Comparison(both, asked).ratios(new, old)
    ok: NDArray[np.bool_] = (both["verdict"] == str(Verdict.OK)).to_numpy(bool)
    adjusted = significance.holm(np.where(ok[old] & ok[new], ratios.p_differs(), np.nan))
    reaches = ratios.notices(ALPHA / max(int(np.isfinite(adjusted).sum()), 1))
    notices = np.expm1(np.where(reaches <= np.log(WIDEST), reaches, np.nan))
    rows = []
    for place, (left, right) in enumerate(pairs):
        first, second = both.iloc[left], both.iloc[right]
        verdicts = str(first["verdict"]), str(second["verdict"])
        values = float(first[metric]), float(second[metric])
        name = f"batch {first['batch']}" if kind == Kind.LANE else _name(first)
        if verdicts != ("ok", "ok"):
            rows.append({"aspect": "results", "name": name, "left": _shown(first, metric), "right": _shown(second, metric),
                          "differs": verdicts[0] != verdicts[1]})  # fmt: skip
            continue
        apart = baselines.differ(both, asked, [left], [right])[0]
        over = [f" over {label}" if apart else "" for label in baselines.labels(both.iloc[[left, right]])]
        with np.errstate(invalid="ignore"):
            differs = bool(adjusted[place] < ALPHA)
        rows.append(
            {
                "aspect": "results",
                "name": name,
                "left": _shown(first, metric) + over[0],
                "right": _shown(second, metric) + over[1],
                **dict(zip(("change", "ci_low", "ci_high"), changes(ratios, place, values, metric), strict=True)),
                "p": float(adjusted[place]),
                "notices": worse_by(reaches[place], values[0], asked)
                if is_complement(metric)
                else float(notices[place]),
                "differs": differs,
            }
        )
    return rows


def _name(row: Any) -> str:
    return f"{row['label']}/{row['compiler_label']}/{row['precision']}/b{row['batch']}"


def _shown(row: Any, metric: str) -> str:
    number = "" if pd.isna(row[metric]) else rounded(row[metric])
    verdict = "" if row["verdict"] == str(Verdict.OK) else str(row["verdict"])
    return " ".join(part for part in (number, verdict) if part)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested keys, joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
