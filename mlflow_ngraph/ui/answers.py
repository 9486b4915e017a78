"""Answers for the page's JSON endpoints, from the results table: choices, comparison of a metric, and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.metrics import NOISE, Metric, is_uncertainty
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.text import plain
from mlflow_ngraph.ui.query import GROUPS, Query
from mlflow_ngraph.verdicts import Verdict

MOST_WORKLOADS = 24
"""Most workloads shown at once. More would make the page slow."""
MOST_FINDINGS = 40
_OWN = ("compiler_label", "precision", "mode", "threads")
"""Columns that separate the numbers of workload, device and batch size."""
_LANE = ("workload", "device", *_OWN)
_LINKS = ("lane_run_id", "model_id", "experiment_id")
_POINT = ("batch", "value", "low", "high", "verdict", "unsteady", "noise")
"""Values of each point of a curve."""
_MARKS = ("tied", "unsteady", "noise")
_IDENTITY = "identity"


def options(frame: pd.DataFrame) -> dict[str, Any]:
    """Values that can be chosen in the newest results."""
    experiments = frame[["experiment_id", "experiment"]].drop_duplicates().sort_values("experiment")
    return {
        "cells": len(frame),
        "studies": int(frame["study_id"].nunique()),
        "newest": plain(frame["started_at"].max()) if len(frame) else None,
        "experiments": [
            {"id": str(experiment_id), "name": str(name)} for experiment_id, name in experiments.itertuples(index=False)
        ],
        "devices": _values(frame["device"]),
        "compilers": sorted(_values(frame["compiler_label"]), key=lambda name: (name != _IDENTITY, name)),
        "precisions": _values(frame["precision"]),
        "batches": [int(size) for size in sorted(frame["batch"].dropna().unique())],
        "workloads": list(_workloads(frame)),
        "metrics": [
            {"name": name, "unit": metric.unit, "better": metric.better, "meaning": metric.meaning}
            for name, metric in _metrics(frame).items()
            if frame[name].notna().any()
        ],
    }


def comparison(frame: pd.DataFrame, question: Query) -> dict[str, Any]:
    """Curves of the newest results over batch size, and the numbers of one batch size side by side.

    Raises `UsageError` if nothing matches, or a chosen value does not exist.
    """
    metrics = _metrics(frame)
    require_known("metric", [question.metric], metrics)
    metric = metrics[question.metric]
    shown = question.select(frame)
    if shown.empty:
        raise UsageError("nothing fits all of this together: choose fewer devices, compilers, precisions or workloads")
    over = baselines.of(shown, metric)
    chosen = next((label for label in (question.baseline, _IDENTITY, *over) if label in over), None)
    if len(over) > 1:
        shown = shown[baselines.labels(shown) == chosen]
    workloads = [workload["ref"] for workload in _workloads(shown)]
    shown = shown[shown["workload"].isin(workloads[:MOST_WORKLOADS])]
    trusted = [str(verdict) for verdict in Verdict] if question.everything else [str(Verdict.OK)]
    batch = _batch(shown, question)
    here = shown[shown["batch"] == batch]
    counted = shown[shown["verdict"].isin(trusted)]
    baseline = _baseline(frame, question)
    return {
        "metric": question.metric,
        "unit": metric.unit,
        "better": metric.better,
        "over": chosen,
        "over_others": [label for label in over if label != chosen],
        "batch": batch,
        "batches": [int(size) for size in sorted(shown["batch"].dropna().unique())],
        "baseline": baseline,
        "workloads": {"shown": min(len(workloads), MOST_WORKLOADS), "fitting": len(workloads)},
        "cells": int(shown["verdict"].isin(trusted).sum()),
        "left_out": {
            str(name): int(count)
            for name, count in shown.loc[~shown["verdict"].isin(trusted), "verdict"].value_counts().items()
        },
        "series": list(_series(counted, question.metric)),
        "table": _table(here, question),
        "ratios": [] if baseline is None else _ratios(frame, question, here, batch, baseline),
        "missing": [
            {name: plain(row[name]) for name in ("workload", "device", *_OWN, "verdict", "reason", *_LINKS)}
            for row in here[~here["verdict"].isin(trusted)].to_dict("records")
        ],
    }


def findings(frame: pd.DataFrame, question: Query) -> dict[str, Any]:
    """Findings about the chosen results, the most important first.

    Raises `UnknownNameError` if nothing has a value that is chosen.
    """
    from mlflow_ngraph.analysis.findings import find

    ranked = find(question.select(frame))
    return {
        "findings": [
            {"kind": finding.kind, "title": finding.title, "text": finding.text, "command": finding.command}
            for finding in ranked[:MOST_FINDINGS]
        ],
        "more": max(0, len(ranked) - MOST_FINDINGS),
    }


def _series(frame: pd.DataFrame, metric: str) -> Iterator[dict[str, Any]]:
    known = frame[frame[metric].notna() & frame["batch"].notna()].sort_values("batch")
    low, high = significance.interval(known, metric)
    columns = {name: list(map(plain, known[name])) for name in (*_LANE, "label", *_LINKS, "batch", "verdict")}
    columns.update(value=list(map(plain, known[metric])), low=list(map(plain, low)), high=list(map(plain, high)))
    columns.update(unsteady=significance.unsteady(known, metric).tolist(), noise=list(map(plain, known[NOISE])))
    for places in known.groupby(list(_LANE), sort=True, dropna=False).indices.values():
        last = places[-1]
        yield {
            **{name: columns[name][last] for name in (*_LANE, "label", *_LINKS)},
            **{name: [columns[name][place] for place in places] for name in _POINT},
        }


def _table(here: pd.DataFrame, question: Query) -> list[dict[str, Any]]:
    """Numbers of one batch size, with the best of each group and its ties."""
    rows = GROUPS[question.best_of]
    columns = [name for name in ("workload", "device", *_OWN) if name not in rows]
    compared = compare(here, rows=rows, columns=columns, metric=question.metric, include=_included(question))
    low, high = significance.interval(here, question.metric)
    names = ("label", "threads", "study", "started_at", *_LINKS)
    columns_of: list[Any] = [*(here[name] for name in names), low, high]
    converted = [list(map(plain, values)) for values in columns_of]
    lines = zip(*converted, strict=True)
    cells = {
        cell: dict(zip((*names, "low", "high"), line, strict=True))
        for cell, line in zip(here["cell"], lines, strict=True)
    }
    return [
        {
            **{name: entry[name] for name in ("workload", "device", *_OWN, "verdict", "value", *_MARKS, "best")},
            **cells[entry["cell"]],
            "precision_in_force": entry["precision_in_force"],
            "fallback_nodes": entry["fallback_nodes"],
        }
        for entry in compared.about["values"]
    ]


def _ratios(
    frame: pd.DataFrame, question: Query, here: pd.DataFrame, batch: int, baseline: str
) -> list[dict[str, Any]]:
    """Divide by the baseline, which may be missing from the chosen compilers."""
    bases = question.select(frame, but="compiler")
    bases = bases[(bases["batch"] == batch) & (bases["compiler_label"] == baseline)]
    both = pd.concat([here, bases[~bases["cell"].isin(here["cell"])]])
    compared = compare(
        both,
        rows=("workload", "device"),
        columns=_OWN,
        metric=question.metric,
        include=_included(question),
        relative_to=("compiler_label", baseline),
    )
    chosen = dict(zip(here["cell"], map(plain, here["threads"]), strict=True))
    kept = ("workload", "device", *_OWN, "verdict", "value", *_MARKS)
    return [
        {
            **{name: entry[name] for name in kept},
            "threads": chosen[entry["cell"]],
            "low": entry["ci_low"],
            "high": entry["ci_high"],
        }
        for entry in compared.about["values"]
        if entry["cell"] in chosen
    ]


def _baseline(frame: pd.DataFrame, question: Query) -> str | None:
    """Compiler to divide by: the chosen one, else eager execution or the studies' baseline; None without any."""
    known = _values(question.select(frame, but="compiler")["compiler_label"])
    if question.baseline is None:
        of_studies = baselines.labels(question.select(frame, but="compiler"))
        return next((label for label in (_IDENTITY, *dict.fromkeys(of_studies)) if label in known), None)
    if question.baseline not in known:
        raise UsageError(f"nothing of the baseline {question.baseline!r} fits: there is {', '.join(known)}")
    return question.baseline


def _batch(shown: pd.DataFrame, question: Query) -> int:
    """Chosen batch size, else the one at which most models run fastest."""
    known = sorted(int(size) for size in shown["batch"].dropna().unique())
    if question.batch is None:
        measured = shown[(shown["verdict"] == str(Verdict.OK)) & shown["throughput"].notna()]
        best = measured.sort_values("throughput").drop_duplicates(["workload", "device"], keep="last")["batch"]
        # Among equally frequent ones the largest: its calls are longer, and its figures steadier.
        return int(best.mode().iloc[-1]) if len(best) else known[0]
    if question.batch not in known:
        raise UsageError(f"nothing was measured at batch size {question.batch}: there is {', '.join(map(str, known))}")
    return question.batch


def _metrics(frame: pd.DataFrame) -> dict[str, Metric]:
    known = metrics_of(frame)
    return {name: metric for name, metric in known.items() if not is_uncertainty(name)}


def _included(question: Query) -> Sequence[str]:
    return [str(verdict) for verdict in Verdict] if question.everything else ()


def _workloads(frame: pd.DataFrame) -> Iterator[dict[str, str]]:
    known = frame[["family", "label", "workload"]].drop_duplicates("workload").sort_values(["family", "label"])
    for family, label, ref in known.fillna("").itertuples(index=False):
        yield {"ref": str(ref), "label": str(label), "family": str(family)}


def _values(column: pd.Series[Any]) -> list[str]:
    return sorted(map(str, column.dropna().unique()))
