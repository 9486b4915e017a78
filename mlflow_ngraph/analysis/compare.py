"""Compare results: choose from the tidy table, keep the newest number of each cell, relate, rank, and pivot."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import rivals, significance
from mlflow_ngraph.analysis.comparison import SAME_ROUNDS, Comparison, Mask, Places
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, FILTERED, Selection
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.estimates import ALPHA, Array, Estimate
from mlflow_ngraph.metrics import NOISE, VARIABLES, Metric, with_estimates
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.tables.summary import fallback_nodes
from mlflow_ngraph.text import plain
from mlflow_ngraph.verdicts import Verdict

ALIKE = ("device", "workload", "compiler_label", "precision", "mode", "threads", "batch")
"""What tells cells apart within a study; a baseline shares all but what it is the baseline of."""
_TELLS_APART = ("label", *dict.fromkeys(("workload", *ALIKE)))
"""What tells the cells of a pivot apart, in the order in which it is asked for; a label is one workload's where tables are read."""
_REFINED = {"compiler": "compiler_label"}
"""Columns in whose place one stands that tells cells apart which they merge."""
_SETS_APART = {"compiler": ("compiler_label",), "study": (), "study_id": (), "git_commit": (), "label": ("workload",)}
"""Of `ALIKE`, what a baseline that is chosen by a column need not share, where it is not that column itself."""


def needed(rows: Sequence[str], columns: Sequence[str], metric: str, more: Collection[str] = ()) -> list[str]:
    """The columns of the tidy table that `compare` looks at."""
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
) -> pd.DataFrame:
    """A pivot of one metric over the newest results.

    Of a cell that was measured several times the latest study counts, also where it ended worse. Cells that differ in
    workload, device, flags, precision, mode, threads or batch size stand in places of their own: what the rows and columns
    do not tell apart is added to the rows, and ``compiler`` becomes ``compiler_label``. With ``best``, several cells may
    fall together. Then the best one is shown; one that is not ``ok`` only where no ``ok`` cell has a number.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table of `results.load` or `results.from_record`.
    rows, columns : Sequence[str]
        Columns of ``frame`` that span the pivot.
    metric : str
        A metric of a cell.
    selection : Selection | None
        Which cells are meant.
    include : Collection[str]
        Verdicts whose numbers are shown beside those that are ``ok``.
    relative_to : tuple[str, str] | None
        A column and its value, such as ``("compiler", "identity")``: numbers are divided by those of the cell that has
        this value there and is otherwise alike. It need not fit the selection.
    best : Sequence[str]
        Show only the best of all cells that are equal in these columns, and what cannot be told from it. Nothing else is
        added to the rows.
    sort : str | None
        A column of the pivot's rows, or ``value`` for the best number of a row; ascending unless it begins with ``-``.
    **filters : Sequence[Any] | None
        Which cells are meant, by the fields of a `Selection`.

    Returns
    -------
    pd.DataFrame
        The pivot. ``attrs["left_out"]`` counts by verdict the cells that were left out, ``attrs["cells"]`` the others,
        ``attrs["without_baseline"]`` those that there is nothing to divide by, and ``attrs["metric"]``,
        ``attrs["unit"]``, ``attrs["relative_to"]`` and, of a ratio, ``attrs["baseline"]`` say what is shown, ``attrs["added"]`` what was added
        to the rows, and ``attrs["refined"]`` what took the place of which column. ``attrs["values"]`` says of every number which
        cell it is of, by ``which`` it is told from those that fall together with it, with its verdict, interval, the precision in force and how many of its nodes fell back to another
        provider; whether it is ``unsteady``, and the ``noise`` and ``variables`` of its cell; whether it is the ``best`` of its row; and whether it is ``tied``: not told apart from the best or,
        with ``relative_to``, from 1.

    Raises
    ------
    UnknownNameError
        There is no such column, metric or verdict, or a filter names what the table does not have.
    UsageError
        Several cells fall together and neither high nor low is better; the metric refers to several baselines; or no cell
        fits all filters.
    """
    measured = _check(frame, [*rows, *columns, *best], metric, include)
    if best and measured.better == "neither":
        raise UsageError(f"no {metric} is the better one: leave out best")
    frame = frame.assign(threads=_threads(frame))
    given: dict[str, Any] = {name: tuple(value) for name, value in filters.items() if value}
    asked = replace(selection or Selection(), **given)
    asked.check(frame)
    chosen = latest(_candidates(asked.of(frame), relative_to))
    trusted = [str(Verdict.OK), *include]
    left_out = chosen[~chosen["verdict"].isin(trusted)]
    kept = chosen.drop(left_out.index)
    baselines.check_one(kept, [measured])
    without = 0
    shown = Shown(Comparison(kept, measured), np.arange(len(kept)))
    if relative_to is not None:
        base = _baselines(frame, asked, relative_to, trusted)
        baselines.check_one(pd.concat([kept, base]), [measured])
        shown, without = _divided(shown, base, relative_to)
    apart = _Apart(shown.known(), list(rows), list(columns))
    apart.tell(best or _TELLS_APART)
    places = [*apart.rows, *apart.columns]
    ranked = shown.best(places)
    if best:
        ranked = ranked.leaders(best)
    table = _pivot(ranked, apart.rows, apart.columns, sort)
    table.attrs = {
        "metric": metric,
        "unit": "1" if relative_to else measured.unit,
        "relative_to": None if relative_to is None else "=".join(relative_to),
        "baseline": next(iter(baselines.of(kept, measured)), None),
        "cells": len(kept),
        "left_out": {str(name): int(count) for name, count in left_out["verdict"].value_counts().items()},
        "without_baseline": without,
        "added": apart.rows[len(rows) :],
        "refined": {old: new for old, new in _REFINED.items() if old in [*rows, *columns] and old not in places},
        "values": ranked.described(apart.rows, places, apart.merged(), relative=relative_to is not None),
    }
    return table


@dataclass(frozen=True)
class Shown:
    """Cells with the numbers that are shown of them."""

    compared: Comparison
    """All cells that may be shown."""
    places: Places
    """Where those stand that are."""
    divided: Estimate | None = None
    """The ratios to the baseline, cell by cell, where the numbers are such."""
    touched: Mask | None = None
    """Of ratios, which of them noise touches: all but those of shared rounds."""

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows of the cells."""
        rows: pd.DataFrame = self.compared.frame.iloc[self.places]
        return rows

    @property
    def metric(self) -> Metric:
        """What is shown, or divided."""
        return self.compared.metric

    @property
    def values(self) -> Array:
        """The numbers."""
        return self.compared.numbers[self.places] if self.divided is None else self.divided.value

    @property
    def interval(self) -> tuple[Array, Array]:
        """The ends of the intervals; NaN where there are none."""
        if self.divided is not None:
            return self.divided.interval()
        return significance.interval(self.frame, self.metric.name)

    @property
    def badness(self) -> Array:
        """The numbers, turned so that the best one is the smallest."""
        return self.values if self.metric.better == "lower" else -self.values

    def take(self, own: Places) -> Shown:
        """Some of the cells, by their positions."""
        divided = None if self.divided is None else self.divided.take(own)
        touched = None if self.touched is None else self.touched[own]
        return Shown(self.compared, self.places[own], divided, touched)

    def known(self) -> pd.DataFrame:
        """The rows of the cells that have a number."""
        known: pd.DataFrame = self.frame[~np.isnan(self.values)]
        return known

    def best(self, by: Sequence[str]) -> Shown:
        """Of the cells that fall together the best one, a trustworthy one before all others."""
        known = ~np.isnan(self.values) & self.frame[list(by)].notna().all(axis=1).to_numpy(bool)
        positions = np.flatnonzero(known)
        keys = self.frame.iloc[positions][list(by)]
        if self.metric.better == "neither" and keys.duplicated().any():
            raise UsageError(
                f"several cells fall together, and no {self.metric.name} is the better one: add 'cell' to the rows"
            )
        doubtful = (self.frame["verdict"].to_numpy(str) != str(Verdict.OK))[positions]
        order = positions[np.lexsort((self.badness[positions], doubtful))]
        together = self.frame.iloc[order].groupby(list(by), sort=False).indices.values()
        return self.take(np.sort(np.array([self._best(order[inside]) for inside in together], int)))

    def leaders(self, by: Sequence[str]) -> Shown:
        """The best of each group, and what cannot be told from it."""
        leads, ties = self.marks(by)
        return self.take(np.flatnonzero(leads | ties))

    def marks(self, by: Sequence[str]) -> tuple[Mask, Mask]:
        """Which cells are the best of their group, and which cannot be told from it.

        Only cells that can rank take part; see `Comparison.ranks`. p-values are adjusted within each group.
        """
        leads, ties = np.zeros(len(self.places), bool), np.zeros(len(self.places), bool)
        if self.metric.better == "neither":
            return leads, ties
        ok = np.flatnonzero(self.compared.ranks[self.places])
        groups = self.frame.iloc[ok].groupby(list(by), sort=False, dropna=False).indices if by else {(): range(len(ok))}
        for inside in groups.values():
            own = ok[np.asarray(inside, int)]
            if not len(own):
                continue
            lead = self._best(own[np.argsort(self.badness[own], kind="stable")])
            leads[lead] = True
            if self.divided is None:
                ties[own] = self.compared.tied(int(self.places[lead]), self.places[own])
            else:
                others = own[own != lead]
                against = self.divided.take(others).over(self.divided.take(np.full(len(others), lead)))
                ties[others] = significance.holm(against.p_differs()) >= ALPHA
        return leads, ties

    def _best(self, own: Places) -> int:
        """The position of the best of some cells, which stand in the order of their numbers."""
        ranked = own[self.compared.ranks[self.places[own]]]
        if self.divided is not None or len(ranked) < 2:
            return int((ranked if len(ranked) and self.divided is None else own)[0])
        return int(own[self.places[own] == self.compared.leader(self.places[ranked])][0])

    def described(
        self, rows: Sequence[str], names: Sequence[str], which: Sequence[str], *, relative: bool
    ) -> list[dict[str, Any]]:
        """What a reader has to know about each number; plain values, so that the table can be copied."""
        leads, ties = self.marks(rows)
        if relative and self.divided is not None:
            ties = significance.holm(self.divided.p_differs()) >= ALPHA
        low, high = self.interval
        estimate = self.compared.figures.take(self.places) if self.divided is None else self.divided
        touched = significance.unsteady(self.frame, self.metric.name) if self.touched is None else self.touched
        records = self.frame.to_dict("records")
        return [
            {
                "cell": row["cell"],
                "verdict": row["verdict"],
                "precision_in_force": plain(row["precision_in_force"]),
                "fallback_nodes": _fallback_nodes(row["flags"]),
                "fingerprint": plain(row["fingerprint"]),
                **{name: str(row[name]) for name in names},
                "which": {name: str(row[name]) for name in which},
                "value": float(value),
                "ci_low": plain(low[place]),
                "ci_high": plain(high[place]),
                "log_se": plain(estimate.error[place]),
                "df": plain(estimate.freedom[place]),
                "unsteady": bool(touched[place]),
                "noise": plain(row.get(NOISE)),
                "variables": plain(row.get(VARIABLES)),
                "best": bool(leads[place]),
                "tied": bool(ties[place]),
            }
            for place, (row, value) in enumerate(zip(records, self.values, strict=True))
        ]


@dataclass(frozen=True)
class _Apart:
    """The rows and columns of a pivot, and what they merge."""

    frame: pd.DataFrame
    """The cells that have a place in it."""
    rows: list[str]
    columns: list[str]

    def tell(self, names: Sequence[str]) -> None:
        """Let cells that differ in one of these columns have places of their own."""
        for name in names:
            if not self._merges(name):
                continue
            for axis in (self.rows, self.columns):
                axis[:] = [name if _REFINED.get(old) == name else old for old in axis]
            if name not in [*self.rows, *self.columns]:
                self.rows.append(name)

    def merged(self) -> list[str]:
        """By what the cells are told apart that fall together."""
        names = list(filter(self._merges, _TELLS_APART))
        return [name for name in names if name != "workload" or "label" not in names]

    def _merges(self, name: str) -> bool:
        places = [*self.rows, *self.columns]
        return name not in places and bool((self.frame.groupby(places, observed=True)[name].nunique() > 1).any())


def _threads(frame: pd.DataFrame) -> pd.Series[Any]:
    """Numbers of threads; where a cell has none, as text, that of the runtime by its name in a study."""
    known = frame["threads"]
    return known.astype("string").fillna("default") if known.isna().any() else known


def _fallback_nodes(flags: str | None) -> int:
    # Most flags have no such count, and are not worth reading for it.
    return fallback_nodes(json.loads(flags)) if flags and "fallback" in flags else 0


def latest(frame: pd.DataFrame, by: Sequence[str] = ("cell", "device")) -> pd.DataFrame:
    """The rows of the latest study of each cell, of those that had the time to measure it if there is one.

    Parameters
    ----------
    frame : pd.DataFrame
        With the columns ``verdict``, ``started_at``, ``finished_at`` and those of ``by``.
    by : Sequence[str]
        The columns in which rows of one cell are equal.
    """
    keys = frame[["started_at", "finished_at"]].assign(tried=frame["verdict"] != str(Verdict.LEFT_OUT))
    order = keys.reset_index(drop=True).sort_values(["tried", "started_at", "finished_at"], kind="stable").index
    newest: pd.DataFrame = frame.iloc[order].drop_duplicates(list(by), keep="last").sort_index()
    return newest


def _check(frame: pd.DataFrame, names: Sequence[str], metric: str, include: Collection[str]) -> Metric:
    """Complain about names that do not exist; what the metric is."""
    for name in names:
        if name not in frame.columns:
            raise UnknownNameError("column", name, (str(known) for known in frame.columns))
    metrics = metrics_of(frame)
    if metric not in metrics:
        raise UnknownNameError("metric", metric, metrics)
    for name in include:
        if name not in {str(known) for known in Verdict}:
            raise UnknownNameError("verdict", name, map(str, Verdict))
    return metrics[metric]


def _candidates(frame: pd.DataFrame, relative_to: tuple[str, str] | None) -> pd.DataFrame:
    """What is compared: with another study as the baseline, all but that study."""
    if relative_to is None or relative_to[0] not in ("study", "study_id", "git_commit"):
        return frame
    others: pd.DataFrame = frame[frame[relative_to[0]].fillna("") != relative_to[1]]
    return others


def _baselines(
    frame: pd.DataFrame, asked: Selection, relative_to: tuple[str, str], trusted: Sequence[str]
) -> pd.DataFrame:
    """The cells to divide by: the newest that fit the selection, but for the column that they are chosen by."""
    column, value = relative_to
    if column not in frame.columns:
        raise UnknownNameError("column", column, (str(known) for known in frame.columns))
    here = frame[column].astype("string")
    if value not in set(here.dropna()):
        raise UnknownNameError(column, value, set(map(str, here.dropna().unique())))
    freed: dict[str, Any] = {name: () for name, names in FILTERED.items() if column in names}
    fitting = replace(asked, **freed).of(frame[(here == value).fillna(False)])
    return latest(fitting[fitting["verdict"].isin(trusted)])


def _divided(shown: Shown, base: pd.DataFrame, relative_to: tuple[str, str]) -> tuple[Shown, int]:
    """The numbers divided by those of their baselines, and how many cells have none."""
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
    divided = Shown(compared, places, ratios.take(numbers), touched)
    return divided, len(shown.frame) - len(places)


def _pivot(shown: Shown, rows: Sequence[str], columns: Sequence[str], sort: str | None) -> pd.DataFrame:
    values = shown.frame[[*rows, *columns]].assign(_value=shown.values)
    table: pd.DataFrame = values.pivot_table(
        index=list(rows), columns=list(columns), values="_value", aggfunc="first", sort=True, observed=True
    )
    if sort is None:
        return table
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name not in (*rows, "value"):
        raise UnknownNameError("row to sort by", name, [*rows, "value"])
    if name == "value":
        key = table.min(axis=1) if shown.metric.better == "lower" else table.max(axis=1)
        order: pd.Index[Any] = key.sort_values(ascending=not descending, kind="stable").index
    else:
        order = table.index.sort_values() if table.index.nlevels == 1 else table.sort_index(level=name).index
        order = order[::-1] if descending else order
    ordered: pd.DataFrame = table.loc[order]
    return ordered
