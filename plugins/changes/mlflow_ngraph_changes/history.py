"""History of one cell with its change points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import cells, significance
from mlflow_ngraph.analysis.compare import ALIKE
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.metrics import is_complement
from mlflow_ngraph.tables import baselines, distinct
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import CONTENT
from mlflow_ngraph_changes.change_points import change_points, levels

COLUMNS = ("started_at", "study_id", "study", "git_commit", "fingerprint", "verdict", "reason", "value", "ci_low", "ci_high",
           "unsteady", "level", "change")  # fmt: skip
"""Columns of a history. ``unsteady`` marks contaminated values; ``change`` is relative to the previous level, where a
new one begins."""
_BARS = "▁▂▃▄▅▆▇█"


def history(frame: pd.DataFrame, cell: str, metric: str = "throughput") -> Described:
    """Collect the results of a cell, in order of time.

    The newest study with such a cell, named by its id or as ``LABEL/COMPILER/bBATCH`` (see `cells.choose`), defines it.
    Others match on the same machine, even if flags or their defaults have changed.

    Returns one row per study, with the columns of `COLUMNS`. ``about`` has ``cell``, ``label``, ``device``,
    ``compiler_label``, ``precision``, ``batch``, ``metric``, ``unit``, ``better``, ``models`` (number of different
    weights or codes), ``machines`` (others that measured the cell) and ``changes`` (number of changes of level).

    Raises `UnknownNameError` if there is no such metric, and `UsageError` if no study has such a cell or several fit,
    or the metric refers to several baselines.
    """
    metrics = metrics_of(frame)
    require_known("metric", [metric], metrics)
    newest = _row(frame, cell)
    frame, newest["workload"] = distinct.by_name(frame), CONTENT.sub("", newest["workload"])
    keys = [name for name in ALIKE if name in frame.columns]
    alike = np.logical_and.reduce([_equal(frame[name], newest[name]) for name in keys])
    same = frame[alike]
    here = same[_equal(same["fingerprint"], newest["fingerprint"])]
    rows = here.sort_values(["started_at", "finished_at"], kind="stable").drop_duplicates("study_id", keep="last")
    rows = rows.reset_index(drop=True)
    baselines.check_one(rows, [metrics[metric]])
    studies = rows.reindex(columns=[name for name in COLUMNS if name in rows.columns])
    studies["value"] = rows[metric].astype(float)
    studies["ci_low"], studies["ci_high"] = significance.interval(rows, metric)
    studies["unsteady"] = significance.unsteady(rows, metric)
    starts = _add_levels(studies, rows, metric)
    table: pd.DataFrame = studies[list(COLUMNS)]
    about = {
        **{name: str(newest[name]) for name in ("cell", "label", "device", "compiler_label", "precision")},
        "batch": int(newest["batch"]),
        "metric": metric,
        "baseline": next(iter(baselines.of(rows, metrics[metric])), None),
        "unit": metrics[metric].unit,
        "better": metrics[metric].better,
        "models": int(rows["content"].nunique()),
        "machines": int(same["fingerprint"].nunique(dropna=False)) - 1,
        "changes": starts,
    }
    return Described(table, about)


def sparkline(values: Sequence[float]) -> str:
    """Line of bars from the smallest to the largest value; blank for missing ones."""
    numbers = np.asarray(values, float)
    known = numbers[np.isfinite(numbers)]
    if not known.size:
        return " " * numbers.size
    low, high = float(known.min()), float(known.max())
    middle = (len(_BARS) - 1) // 2
    places = [
        None
        if not np.isfinite(value)
        else middle
        if high == low
        else round((value - low) / (high - low) * (len(_BARS) - 1))
        for value in numbers
    ]
    return "".join(" " if place is None else _BARS[place] for place in places)


def _add_levels(table: pd.DataFrame, rows: pd.DataFrame, metric: str) -> int:
    """Fill ``level`` and ``change``, and return the number of changes."""
    table["level"], table["change"] = np.nan, np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = significance.figures(rows, metric)
    places = np.flatnonzero((rows["verdict"] == str(Verdict.OK)).to_numpy(bool) & np.isfinite(whole.log))
    trusted = whole.take(places)
    starts = change_points(trusted.log, trusted.error, trusted.freedom)
    logs = levels(trusted.log, starts)
    complement = is_complement(metric)
    values = 1 - np.exp(logs) if complement else np.exp(logs)
    table.loc[places, "level"] = values
    with np.errstate(over="ignore"):
        for start in starts:
            table.loc[places[start], "change"] = values[start] / values[start - 1] - 1
    return len(starts)


def _row(frame: pd.DataFrame, cell: str) -> pd.Series[Any]:
    matches = {(match.id, match.device): match for match in cells.choose([cell], cells.of_results(frame))}
    if len(matches) > 1:
        names = ", ".join(f"{match.full_address} on {match.device}" for match in list(matches.values())[:4])
        raise UsageError(f"a history is of one cell, {cell} fits {len(matches)}: {names}")
    (chosen,) = matches.values()
    row: pd.Series[Any] = frame[(frame["cell"] == chosen.id) & (frame["study_id"] == chosen.study_id)].iloc[-1]
    return row


def _equal(column: pd.Series[Any], value: Any) -> NDArray[np.bool_]:
    same = column.isna() if pd.isna(value) else (column == value).fillna(False)
    equal: NDArray[np.bool_] = same.to_numpy(bool)
    return equal
