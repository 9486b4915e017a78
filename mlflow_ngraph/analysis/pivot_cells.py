"""Cells of a pivot with their numbers, the best of each place, and ties."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.cell_columns import Mask, Places, grouped
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.estimates import ALPHA, Array, Estimate
from mlflow_ngraph.metrics import NOISE, VARIABLES, Metric
from mlflow_ngraph.tables.remarks import fallback_nodes
from mlflow_ngraph.text import plain
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class PivotCells:
    """Cells with their numbers."""

    compared: Comparison
    """All candidate cells."""
    places: Places
    """Positions of the cells."""
    divided: Estimate | None = None
    """Ratios to the baseline by cell; None without a baseline."""
    touched: Mask | None = None
    """Ratios that noise affects: those without shared rounds."""
    whole: PivotCells | None = None
    """The cells that these stand for, each for those of its place; None if they are all."""
    stands_for: Places | None = None
    """For each cell of ``whole``, the position of the one that stands for it; -1 if none does."""

    @cached_property
    def frame(self) -> pd.DataFrame:
        rows: pd.DataFrame = self.compared.frame.iloc[self.places]
        return rows

    @property
    def metric(self) -> Metric:
        """Metric of the numbers, before any division."""
        return self.compared.metric

    @property
    def values(self) -> Array:
        return self.compared.numbers[self.places] if self.divided is None else self.divided.value

    @property
    def interval(self) -> tuple[Array, Array]:
        """Ends of the intervals; NaN without one."""
        if self.divided is not None:
            return self.divided.interval()
        return significance.interval(self.frame, self.metric.name)

    @property
    def badness(self) -> Array:
        """Numbers with a sign such that the smallest is the best."""
        return self.values if self.metric.better == "lower" else -self.values

    def take(self, own: Places) -> PivotCells:
        """Select cells by position."""
        divided = None if self.divided is None else self.divided.take(own)
        touched = None if self.touched is None else self.touched[own]
        if self.stands_for is None:
            return PivotCells(self.compared, self.places[own], divided, touched)
        positions = np.full(len(self.places) + 1, -1)
        positions[own] = np.arange(len(own))
        return PivotCells(self.compared, self.places[own], divided, touched, self.whole, positions[self.stands_for])

    def known(self) -> pd.DataFrame:
        """Rows of cells with a number."""
        known: pd.DataFrame = self.frame[~np.isnan(self.values)]
        return known

    def best(self, by: Sequence[str], *groups: Sequence[str]) -> PivotCells:
        """Best cell of each place, ``ok`` ones first. The best cell of a group stands for its place."""
        known = ~np.isnan(self.values) & self.frame[list(by)].notna().all(axis=1).to_numpy(bool)
        positions = np.flatnonzero(known)
        keys = self.frame.iloc[positions][list(by)]
        if self.metric.better == "neither" and keys.duplicated().any():
            raise UsageError(
                f"several cells fall together, and no {self.metric.name} is the better one: add 'cell' to the rows"
            )
        doubtful = (self.frame["verdict"].to_numpy(str) != str(Verdict.OK))[positions]
        order = positions[np.lexsort((self.badness[positions], doubtful))]
        place = self.frame.iloc[order].groupby(list(by), sort=False).ngroup().to_numpy(int)
        together = grouped(place, np.arange(len(order)))
        chosen = np.array([self._best(order[inside]) for inside in together.values()], int)
        if len(chosen) == len(order):
            return self.take(np.sort(chosen))
        whole = self.take(order)
        for columns in sorted(groups, key=len, reverse=True):  # the largest groups last
            leads = np.flatnonzero(whole.marks(columns)[0])
            chosen[place[leads]] = order[leads]
        ordered = np.argsort(chosen)
        return replace(self.take(chosen[ordered]), whole=whole, stands_for=np.argsort(ordered)[place])

    def leaders(self, by: Sequence[str]) -> PivotCells:
        """Best cell of each group, with its ties."""
        leads, ties = self.marks(by)
        marked = self if self.whole is not None else replace(self, whole=self, stands_for=np.arange(len(self.places)))
        return marked.take(np.flatnonzero(leads | ties))

    def marks(self, by: Sequence[str]) -> tuple[Mask, Mask]:
        """Mark the best cells of groups, and their ties.

        Only cells that rank take part; see `Comparison.ranks`. p-values are adjusted within each group. A better figure
        that cannot rank counts as a tie: nothing shows that it is worse. A cell that stands for others is marked if one of
        them is.
        """
        leads, ties = np.zeros(len(self.places), bool), np.zeros(len(self.places), bool)
        if self.metric.better == "neither":
            return leads, ties
        if self.whole is not None and self.stands_for is not None:
            for mask, every in zip((leads, ties), self.whole.marks(by), strict=True):
                mask[self.stands_for[every & (self.stands_for >= 0)]] = True
            return leads, ties & ~leads
        able = self.compared.ranks[self.places]
        unsure = self.compared.ok[self.places] & ~able
        everywhere = range(len(self.places))
        groups = self.frame.groupby(list(by), sort=False, dropna=False).indices if by else {(): everywhere}
        for inside in groups.values():
            members = np.asarray(inside, int)
            own = members[able[members]]
            if not len(own):
                continue
            lead = self._best(own[np.argsort(self.badness[own], kind="stable")])
            leads[lead] = True
            if self.divided is None:
                ties[own] = self.compared.tied(int(self.places[lead]), self.places[own])
            else:
                others = own[own != lead]
                against = self.divided.take(others).over(self.divided.take(np.full(len(others), lead)))
                ties[others] = (significance.holm(against.p_differs()) >= ALPHA) & ~against.far
            ties[members] |= unsure[members] & (self.badness[members] < self.badness[lead])
        return leads, ties

    def _best(self, own: Places) -> int:
        """Position of the best among cells sorted by number."""
        ranked = own[self.compared.ranks[self.places[own]]]
        if self.divided is not None or len(ranked) < 2:
            return int((ranked if len(ranked) and self.divided is None else own)[0])
        return int(own[self.places[own] == self.compared.leader(self.places[ranked])][0])

    def described(
        self, rows: Sequence[str], names: Sequence[str], which: Sequence[str], *, relative: bool
    ) -> list[dict[str, Any]]:
        """Facts about each number as plain values, which copies of a table can share."""
        leads, ties = self.marks(rows)
        if relative and self.divided is not None:
            ties = (significance.holm(self.divided.p_differs()) >= ALPHA) & ~self.divided.far
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
                "which": {name: str(row[name]) for name in which if str(row[name]) not in (row[one] for one in names)},
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


def _fallback_nodes(flags: str | None) -> int:
    # Most flags have no such count, and are not worth reading for it.
    return fallback_nodes(json.loads(flags)) if flags and "fallback" in flags else 0
