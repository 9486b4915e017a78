"""`Pivot`: a finished comparison as plain values, to and from JSON. Imports no pandas.

Cached comparisons are shown before pandas could be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.described import Described

T = TypeVar("T")
Key = tuple[str, ...]


@dataclass(frozen=True)
class Pivot:
    """Plain values of a table from `compare.compare`."""

    rows: Key
    """Names of the row columns."""
    columns: Key
    row_keys: tuple[Key, ...]
    """Keys of each row, in order."""
    column_keys: tuple[Key, ...]
    about: dict[str, Any]
    """Facts about the table, and each number in ``values``."""

    @classmethod
    def of(cls, compared: Described) -> Pivot:
        table, about = compared
        return cls(
            rows=tuple(map(str, table.index.names)),
            columns=tuple(map(str, table.columns.names)),
            row_keys=tuple(_keys(table.index)),
            column_keys=tuple(_keys(table.columns)),
            about=about,
        )

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Pivot:
        rows, columns = (tuple(map(tuple, plain[name])) for name in ("row_keys", "column_keys"))
        return cls(tuple(plain["rows"]), tuple(plain["columns"]), rows, columns, plain["about"])

    def to_plain(self) -> dict[str, Any]:
        return dict(vars(self))

    def cells(self, shown: Callable[[dict[str, Any]], T], missing: T) -> list[list[T]]:
        """Line for each row, with the facts about each number."""
        names = (*self.rows, *self.columns)
        by_place = {tuple(value[name] for name in names): shown(value) for value in self.about["values"]}
        return [[by_place.get((*row, *column), missing) for column in self.column_keys] for row in self.row_keys]


def _keys(index: pd.Index[Any]) -> Iterator[Key]:
    """Keys of an axis as text."""
    for row in index.to_frame(index=False).to_dict("records"):
        yield tuple(str(value) for value in row.values())
