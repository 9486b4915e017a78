"""Pivot of one metric over the newest results, with ratios to a baseline and marks of the best."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import rivals, significance
from mlflow_ngraph.analysis.comparison import SAME_ROUNDS, Comparison
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.analysis.pivot_cells import PivotCells
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, FILTERED, Selection
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.metrics import NOISE, Metric, with_estimates
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.text import counted
from mlflow_ngraph.verdicts import Verdict

ALIKE = ("device", "workload", "compiler_label", "precision", "mode", "threads", "batch")
"""Columns that identify a cell within a study. A baseline differs in the one that defines it."""
_TELLS_APART = ("label", *dict.fromkeys(("workload", *ALIKE)))
"""Columns added to a pivot to separate its cells, in this order. Labels are unique where tables are read."""
_REFINED = {"compiler": "compiler_label"}
"""Columns that are replaced by a finer one where they merge cells."""
_SETS_APART = {"compiler": ("compiler_label",), "study": (), "study_id": (), "git_commit": (), "label": ("workload",)}
"""Columns of `ALIKE` in which a baseline may differ, unless one defines it."""


def needed(rows: Sequence[str], columns: Sequence[str], metric: str, more: Collection[str] = ()) -> list[str]:
    """Needed columns of the tidy table."""
    figures = [*sorted(rivals.needed(metric)), *with_estimates(["speedup"])]
    own = [
        "cell",
        "label",
        "verdict",
        "flags",
        "precision_in_force",
        "study_id",
        "started_at",
        "finished_at",
        "fingerprint",
        NOISE,
    ]
    return list(dict.fromkeys([*rows, *columns, *figures, *own, *ALIKE, *FILTER_COLUMNS, *more]))


def compare(
    frame: pd.DataFrame,
    *,
    rows: Sequence[str] = ("label", "batch"),
    columns: Sequence[str] = ("device", "compiler_label"),
    metric: str = "throughput",
    selection: Selection | None = None,
    include: Collection[str] = (),
    relative_to: tuple[str, str] | None = None,
    best: Sequence[str] = (),
    sort: str | None = None,
    **filters: Sequence[Any] | None,
) -> Described:
    """Build a pivot of one metric over the newest results.

    The latest study of each cell counts, even if it failed. Cells that differ in workload, device, flags, precision,
    mode, threads or batch size get separate places: columns are added to the rows, and ``compiler`` becomes
    ``compiler_label``. With ``best``, a place shows the best of its cells; one that is not ``ok`` only without an
    ``ok`` one.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table of `results.load` or `results.from_record`.
    rows, columns : Sequence[str]
        Columns of ``frame`` that span the pivot.
    selection : Selection | None
        Cells to consider.
    include : Collection[str]
        Verdicts that count besides ``ok``.
    relative_to : tuple[str, str] | None
        Column and value of the baseline, such as ``("compiler", "identity")``. Numbers are divided by those of the
        otherwise equal cell. It need not match the selection.
    best : Sequence[str]
        Show only the best among cells that are equal in these columns, with its ties. No columns are added.
    sort : str | None
        A column of the pivot's rows, or ``value`` for the best number of a row; ascending unless it begins with ``-``.
    **filters : Sequence[Any] | None
        Fields of a `Selection` by name.

    Returns
    -------
    Described
        The pivot. ``about`` has: ``metric``, ``unit``, ``relative_to`` and ``baseline`` (of ratios); ``cells`` (number
        of cells), ``left_out`` (excluded cells by verdict), ``without_baseline`` and ``without_value`` (numbers of
        cells without one); ``added`` (columns added to the rows) and ``refined`` (replaced columns). ``values``
        describes each number: its cell, ``which`` (columns that separate it from merged cells), verdict, interval,
        effective precision, fallback nodes, ``unsteady``, ``noise`` and ``variables``; ``best`` of its row, and
        ``tied`` with the best or, for ratios, with 1.

    Raises
    ------
    UnknownNameError
        There is no such column, metric or verdict, or a filter names what the table does not have.
    UsageError
        Several cells fall together and neither high nor low is better; the metric refers to several baselines; or no
        cell fits all filters.
    """
    asked_for = [*rows, *columns]
    if len(set(asked_for)) < len(asked_for):
        raise UsageError(f"column {max(asked_for, key=asked_for.count)!r} stands twice in rows and columns")
    measured = _check(frame, [*asked_for, *best], metric, include)
    if best and measured.better == "neither":
        raise UsageError(f"no {metric} is the better one: leave out best")
    frame = frame.assign(threads=_threads(frame))
    given: dict[str, Any] = {name: tuple(value) for name, value in filters.items() if value}
    asked = replace(selection or Selection(), **given)
    asked.check(frame)
    fitting = asked.of(frame)
    chosen = latest(_candidates(fitting, relative_to))
    trusted = [str(Verdict.OK), *include]
    left_out = chosen[~chosen["verdict"].isin(trusted)]
    kept = chosen.drop(left_out.index)
    baselines.check_one(kept, [measured])
    without = 0
    shown = PivotCells(Comparison(kept, measured), np.arange(len(kept)))
    if relative_to is not None:
        base = _baselines(frame, asked, relative_to, trusted)
        baselines.check_one(pd.concat([kept, base]), [measured])
        shown, without = _divided(shown, base, relative_to)
    apart = _Apart(shown.known(), list(rows), list(columns))
    apart.separate(best or _TELLS_APART)
    places = [*apart.rows, *apart.columns]
    ranked = shown.best(places, apart.rows, best)
    if best:
        ranked = ranked.leaders(best)
    table = _pivot(ranked, apart.rows, apart.columns, sort)
    about = {
        "metric": metric,
        "unit": "1" if relative_to else measured.unit,
        "relative_to": None if relative_to is None else "=".join(relative_to),
        "baseline": next(iter(baselines.of(kept, measured)), None),
        "cells": len(kept),
        "left_out": {str(name): int(count) for name, count in left_out["verdict"].value_counts().items()},
        "without_baseline": without,
        "without_value": int(np.isnan(shown.values).sum()),
        "added": apart.rows[len(rows) :],
        "quieter": quieter(fitting),
        "refined": {old: new for old, new in _REFINED.items() if old in [*rows, *columns] and old not in places},
        "values": ranked.described(apart.rows, places, apart.merged(), relative=relative_to is not None),
    }
    return Described(table, about)


@dataclass(frozen=True)
class _Apart:
    """Rows and columns of a pivot, and the columns that they merge."""

    frame: pd.DataFrame
    """Cells with a place."""
    rows: list[str]
    columns: list[str]

    def separate(self, names: Sequence[str]) -> None:
        """Add rows until cells that differ in these columns have separate places."""
        for name in names:
            if not self._merges(name):
                continue
            for axis in (self.rows, self.columns):
                axis[:] = [name if _REFINED.get(old) == name else old for old in axis]
            if name not in [*self.rows, *self.columns]:
                self.rows.append(name)

    def merged(self) -> list[str]:
        """Columns that distinguish merged cells."""
        names = list(filter(self._merges, _TELLS_APART))
        return [name for name in names if name != "workload" or "label" not in names]

    def _merges(self, name: str) -> bool:
        places = [*self.rows, *self.columns]
        return name not in places and bool((self.frame.groupby(places, observed=True)[name].nunique() > 1).any())


def _threads(frame: pd.DataFrame) -> pd.Series[Any]:
    """Numbers of threads; text where a cell uses the runtime's default."""
    known = frame["threads"]
    return known.astype("string").fillna("default") if known.isna().any() else known


def latest(frame: pd.DataFrame, by: Sequence[str] = ("cell", "device", "workload")) -> pd.DataFrame:
    """Rows of the latest study of each cell; studies that lacked the time to measure it count last.

    Needs the columns ``verdict``, ``started_at``, ``finished_at`` and those of ``by``, which identify a cell.
    """
    keys = frame[["started_at", "finished_at"]].assign(tried=frame["verdict"] != str(Verdict.LEFT_OUT))
    order = keys.reset_index(drop=True).sort_values(["tried", "started_at", "finished_at"], kind="stable").index
    newest: pd.DataFrame = frame.iloc[order].drop_duplicates(list(by), keep="last").sort_index()
    return newest


def quieter(frame: pd.DataFrame) -> str:
    """Name an earlier study of a quiet machine, where the latest results are of a busy one; empty otherwise."""
    key = ["cell", "device", "workload"]
    cells = frame[frame["verdict"].eq(str(Verdict.OK)).fillna(False)]
    newest, quiet = latest(cells, key), cells[NOISE].fillna("").eq("")
    earlier = cells[quiet].merge(newest.loc[newest[NOISE].fillna("").ne(""), key], on=key)
    if earlier.empty:
        return ""
    study = earlier.sort_values("started_at", kind="stable")["study_id"].iloc[-1]
    count = counted(int(earlier["study_id"].eq(study).sum()), "cell")
    return f"of {count} the latest results are of a busy machine; earlier ones of a quiet machine: --studies {study}"


def _check(frame: pd.DataFrame, names: Sequence[str], metric: str, include: Collection[str]) -> Metric:
    """Refuse unknown names, and return the metric."""
    require_known("column", names, list(map(str, frame.columns)))
    metrics = metrics_of(frame)
    require_known("metric", [metric], metrics)
    require_known("verdict", include, list(map(str, Verdict)))
    return metrics[metric]


def _candidates(frame: pd.DataFrame, relative_to: tuple[str, str] | None) -> pd.DataFrame:
    """Cells to compare; without a study that is the baseline."""
    if relative_to is None or relative_to[0] not in ("study", "study_id", "git_commit"):
        return frame
    others: pd.DataFrame = frame[frame[relative_to[0]].fillna("") != relative_to[1]]
    return others


def _baselines(
    frame: pd.DataFrame, asked: Selection, relative_to: tuple[str, str], trusted: Sequence[str]
) -> pd.DataFrame:
    """Cells to divide by: the newest that match the selection in all but the baseline's column."""
    column, value = relative_to
    require_known("column", [column], list(map(str, frame.columns)))
    here = frame[column].astype("string")
    require_known(column, [value], set(map(str, here.dropna())))
    freed: dict[str, Any] = {name: () for name, names in FILTERED.items() if column in names}
    fitting = replace(asked, **freed).of(frame[(here == value).fillna(False)])
    return latest(fitting[fitting["verdict"].isin(trusted)])


def _divided(shown: PivotCells, base: pd.DataFrame, relative_to: tuple[str, str]) -> tuple[PivotCells, int]:
    """Ratios to the baselines, and the number of cells without one."""
    column = relative_to[0]
    apart = {column, *_SETS_APART.get(column, ())}
    keys = [name for name in ALIKE if name not in apart and name in shown.frame.columns]
    both = pd.concat([shown.frame, base[base[shown.metric.name].notna()]], ignore_index=True)
    marks = pd.MultiIndex.from_frame(both[keys].astype("string").fillna(""))
    compared = Comparison(both, shown.metric)
    where: dict[Any, int] = {}
    for place in np.argsort(compared.badness, kind="stable"):
        if place >= len(shown.frame):
            where.setdefault(marks[place], int(place))
    base_places = np.array([where.get(mark, -1) for mark in marks[: len(shown.frame)]], int)
    places = np.flatnonzero(base_places >= 0)
    ratios = compared.ratios(places, base_places[places])
    numbers = np.flatnonzero(~np.isnan(ratios.value))
    places = places[numbers]
    # The machine's noise touches ratios of shared rounds where it touches speed-ups, others where it does the figures.
    paired = (ratios.how == SAME_ROUNDS)[numbers]
    noisy, loaded = (significance.unsteady(both, name) for name in (shown.metric.name, "speedup"))
    touched = np.where(paired, *(mask[places] | mask[base_places[places]] for mask in (loaded, noisy)))
    divided = PivotCells(compared, places, ratios.take(numbers), touched)
    return divided, len(shown.frame) - len(places)


def _pivot(shown: PivotCells, rows: Sequence[str], columns: Sequence[str], sort: str | None) -> pd.DataFrame:
    values = shown.frame[[*rows, *columns]].assign(_value=shown.values)
    table: pd.DataFrame = values.pivot_table(
        index=list(rows), columns=list(columns), values="_value", aggfunc="first", sort=True, observed=True
    )
    if sort is None:
        return table
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    require_known("row to sort by", [name], [*rows, "value"])
    if name == "value":
        key = table.min(axis=1) if shown.metric.better == "lower" else table.max(axis=1)
        order: pd.Index[Any] = key.sort_values(ascending=not descending, kind="stable").index
    else:
        order = table.index.sort_values() if table.index.nlevels == 1 else table.sort_index(level=name).index
        order = order[::-1] if descending else order
    ordered: pd.DataFrame = table.loc[order]
    return ordered
