"""`CellColumns`: caches columns, intervals and group codes of a results table, for cells by row position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.estimates import Array
from mlflow_ngraph.text import plain

Mask = NDArray[np.bool_]
Places = NDArray[np.int_]


class CellColumns:
    """Columns of a table, each converted once."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self._columns: dict[str, NDArray[np.object_]] = {}
        self._intervals: dict[str, tuple[Array, Array]] = {}
        self._unsteady: dict[str, Mask] = {}
        self._codes: dict[tuple[str, ...], Places] = {}

    def column(self, name: str) -> NDArray[np.object_]:
        """Values of a column as plain ones, None where missing."""
        if name not in self._columns:
            values = self.frame[name] if name in self.frame.columns else pd.Series(None, self.frame.index, dtype=object)
            objects = values.astype(object)
            self._columns[name] = objects.where(objects.notna(), None).to_numpy(object)
        return self._columns[name]

    def row(self, place: int, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Plain values of a cell, by column."""
        asked = map(str, self.frame.columns) if names is None else names
        return {name: plain(self.column(name)[place]) for name in asked}

    def interval(self, metric: str) -> tuple[Array, Array]:
        """Ends of the intervals of all cells by a metric; NaN without one."""
        if metric not in self._intervals:
            self._intervals[metric] = significance.interval(self.frame, metric)
        return self._intervals[metric]

    def unsteady(self, metric: str) -> Mask:
        """Mark cells where a metric is contaminated."""
        if metric not in self._unsteady:
            self._unsteady[metric] = significance.unsteady(self.frame, metric)
        return self._unsteady[metric]

    def codes(self, names: Sequence[str]) -> Places:
        """Number the rows that are equal in the existing columns. Missing values are equal."""
        known = self._codes.get(tuple(names))
        if known is None:
            values = [self.column(name).tolist() for name in names if name in self.frame.columns]
            keys = zip(*(["" if value is None else value for value in column] for column in values), strict=True)
            numbers: dict[tuple[object, ...], int] = {}
            found = [numbers.setdefault(key, len(numbers)) for key in keys] if values else [0] * len(self.frame)
            known = self._codes[tuple(names)] = np.array(found, int)
        return known


def grouped(codes: Places, places: Places) -> dict[int, Places]:
    """Some positions by their code, in their order."""
    order = places[np.argsort(codes[places], kind="stable")]
    numbers, starts = np.unique(codes[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=False))  # of none, there is one empty part
