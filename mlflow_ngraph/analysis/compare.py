"""Compare results: filter the tidy table, keep the newest number of each cell, and pivot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

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
    verdict: Literal["ok", "all"] = "ok",
) -> pd.DataFrame:
    """A pivot of one metric over the newest results.

    Of a cell that was measured several times the latest study counts, also where it ended worse. Where several
    cells fall together, the best one is shown.

    Parameters
    ----------
    frame: the tidy table of `results.load` or `results.from_record`.
    rows, columns: columns of ``frame`` that span the pivot.
    metric: a metric of a cell.
    workloads, compilers: keep these, by full or short name; likewise the other filters.
    verdict: ``ok`` leaves out every cell with another verdict; ``all`` shows whatever number there is.

    Returns
    -------
    The pivot. ``attrs["left_out"]`` counts by verdict the cells that were left out, ``attrs["cells"]`` the others,
    and ``attrs["metric"]`` and ``attrs["unit"]`` say what is shown.

    Raises
    ------
    UnknownNameError: there is no such column, or no such metric, or a filter names what the table does not have.
    UsageError: several cells fall together and neither high nor low is better.
    """
    numbers = [name for name in frame.columns if name in CELL_METRICS]
    for name in (*rows, *columns):
        if name not in frame.columns:
            raise UnknownNameError("column", name, (str(known) for known in frame.columns))
    if metric not in numbers:
        raise UnknownNameError("metric", metric, numbers)
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
    left_out = chosen[chosen["verdict"] != str(Verdict.OK)] if verdict == "ok" else chosen.iloc[:0]
    kept = chosen.drop(left_out.index)
    table = _pivot(kept, list(rows), list(columns), metric)
    table.attrs = {
        "metric": metric,
        "unit": CELL_METRICS[metric].unit,
        "cells": len(kept),
        "left_out": {str(name): int(count) for name, count in left_out["verdict"].value_counts().items()},
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


def _pivot(frame: pd.DataFrame, rows: list[str], columns: list[str], metric: str) -> pd.DataFrame:
    better = CELL_METRICS[metric].better
    known = frame.dropna(subset=[metric])
    if better == "neither" and known.duplicated([*rows, *columns]).any():
        raise UsageError(f"several cells fall together, and no {metric} is the better one: add 'batch' to the rows")
    best = "min" if better == "lower" else "max"
    table: pd.DataFrame = known.pivot_table(index=rows, columns=columns, values=metric, aggfunc=best, sort=True)
    return table
