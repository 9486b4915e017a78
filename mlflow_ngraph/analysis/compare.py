"""Compare results: filter the tidy table, keep the newest number of each cell, and pivot."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from mlflow_ngraph.analysis.summary import fallback_nodes
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.tracking.schema import CELL_METRICS
from mlflow_ngraph.verdicts import Verdict

_FILTERS = {
    "workloads": ("workload", "label"),
    "devices": ("device",),
    "compilers": ("compiler", "compiler_label"),
    "families": ("family",),
    "batch_sizes": ("batch",),
    "precisions": ("precision",),
}


def compare(
    frame: pd.DataFrame,
    *,
    rows: Sequence[str] = ("label", "batch"),
    columns: Sequence[str] = ("device", "compiler_label"),
    metric: str = "throughput",
    workloads: Sequence[str] | None = None,
    devices: Sequence[str] | None = None,
    compilers: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    precisions: Sequence[str] | None = None,
    include: Collection[str] = (),
) -> pd.DataFrame:
    """A pivot of one metric over the newest results.

    Of a cell that was measured several times the latest study counts, also where it ended worse. Where several
    cells fall together, the best one is shown; one that is not ``ok`` only where no ``ok`` cell has a number.

    Parameters
    ----------
    frame: the tidy table of `results.load` or `results.from_record`.
    rows, columns: columns of ``frame`` that span the pivot.
    metric: a metric of a cell.
    workloads, compilers: keep these, by full or short name; likewise the other filters.
    include: verdicts whose numbers are shown beside those that are ``ok``.

    Returns
    -------
    The pivot. ``attrs["left_out"]`` counts by verdict the cells that were left out, ``attrs["cells"]`` the others,
    and ``attrs["metric"]`` and ``attrs["unit"]`` say what is shown. ``attrs["values"]`` says of every number which
    cell it is of, with its verdict, the precision in force and how many of its nodes fell back to another provider.

    Raises
    ------
    UnknownNameError: there is no such column, metric or verdict, or a filter names what the table does not have.
    UsageError: several cells fall together and neither high nor low is better.
    """
    numbers = [name for name in frame.columns if name in CELL_METRICS]
    for name in (*rows, *columns):
        if name not in frame.columns:
            raise UnknownNameError("column", name, (str(known) for known in frame.columns))
    if metric not in numbers:
        raise UnknownNameError("metric", metric, numbers)
    for name in include:
        if name not in {str(known) for known in Verdict}:
            raise UnknownNameError("verdict", name, map(str, Verdict))
    asked = {
        "workloads": workloads,
        "devices": devices,
        "compilers": compilers,
        "families": families,
        "batch_sizes": batch_sizes,
        "precisions": precisions,
    }
    chosen = latest(frame)
    for name, wanted in asked.items():
        if wanted:
            chosen = _keep(chosen, name, [str(value) for value in wanted])
    left_out = chosen[~chosen["verdict"].isin([str(Verdict.OK), *include])]
    kept = chosen.drop(left_out.index)
    best = _best(kept, [*rows, *columns], metric)
    table: pd.DataFrame = best.pivot_table(
        index=list(rows), columns=list(columns), values=metric, aggfunc="first", sort=True
    )
    table.attrs = {
        "metric": metric,
        "unit": CELL_METRICS[metric].unit,
        "cells": len(kept),
        "left_out": {str(name): int(count) for name, count in left_out["verdict"].value_counts().items()},
        "values": [_value(row, [*rows, *columns], metric) for row in best.to_dict("records")],
    }
    return table


def latest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the latest study of each cell."""
    ordered = frame.sort_values(["started_at", "finished_at"], kind="stable")
    newest: pd.DataFrame = ordered.drop_duplicates("cell", keep="last").sort_index()
    return newest


def _keep(frame: pd.DataFrame, name: str, wanted: list[str]) -> pd.DataFrame:
    columns = [frame[column].astype("string") for column in _FILTERS[name]]
    known = {str(value) for column in columns for value in column.dropna()}
    for value in wanted:
        if value not in known:
            raise UnknownNameError(_FILTERS[name][0], value, known)
    match = pd.concat([column.isin(wanted) for column in columns], axis=1).any(axis=1)
    kept: pd.DataFrame = frame[match]
    return kept


def _best(frame: pd.DataFrame, by: list[str], metric: str) -> pd.DataFrame:
    """Of the rows that fall together the best one, a trustworthy one before all others."""
    better = CELL_METRICS[metric].better
    known = frame.dropna(subset=[metric, *by])
    if better == "neither" and known.duplicated(by).any():
        raise UsageError(f"several cells fall together, and no {metric} is the better one: add 'batch' to the rows")
    ranked = known.assign(_doubtful=known["verdict"] != str(Verdict.OK)).sort_values(
        ["_doubtful", metric], ascending=[True, better == "lower"], kind="stable"
    )
    best: pd.DataFrame = ranked.drop_duplicates(by).sort_index()
    return best


def _value(row: dict[Any, Any], names: list[str], metric: str) -> dict[str, Any]:
    """What a reader has to know about one number; plain values, so that the table can be copied and compared."""
    in_force = row["precision_in_force"]
    return {
        "cell": row["cell"],
        "verdict": row["verdict"],
        "precision_in_force": None if pd.isna(in_force) else in_force,
        "fallback_nodes": fallback_nodes(json.loads(row["flags"])),
        **{name: str(row[name]) for name in names},
        "value": float(row[metric]),
    }
