"""A comparison as plain values: printed, written and kept without pandas, whose import takes longer than the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Key = tuple[str, ...]


@dataclass(frozen=True)
class Pivot:
    """What `compare.compare` returns."""

    rows: Key
    """Names of the columns of the results that stand in rows."""
    columns: Key
    row_keys: tuple[Key, ...]
    """What stands beside each row, in order."""
    column_keys: tuple[Key, ...]
    told: dict[str, Any]
    """The ``attrs`` of the table."""

    @classmethod
    def of(cls, table: pd.DataFrame) -> Pivot:
        """The plain values of a table."""
        return cls(
            rows=tuple(map(str, table.index.names)),
            columns=tuple(map(str, table.columns.names)),
            row_keys=tuple(_keys(table.index)),
            column_keys=tuple(_keys(table.columns)),
            told={str(name): value for name, value in table.attrs.items()},
        )

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Pivot:
        """What `to_plain` was made of."""
        rows, columns = (tuple(map(tuple, plain[name])) for name in ("row_keys", "column_keys"))
        return cls(tuple(plain["rows"]), tuple(plain["columns"]), rows, columns, plain["told"])

    def to_plain(self) -> dict[str, Any]:
        """A value that JSON can hold."""
        return dict(vars(self))

    def cells(self, shown: Callable[[dict[str, Any]], T], missing: T) -> list[list[T]]:
        """A line for each row, with what is shown of each number."""
        names = (*self.rows, *self.columns)
        by_place = {tuple(value[name] for name in names): shown(value) for value in self.told["values"]}
        return [[by_place.get((*row, *column), missing) for column in self.column_keys] for row in self.row_keys]


def _keys(index: pd.Index[Any]) -> Iterator[Key]:
    """What stands at each place of an axis, as text."""
    for row in index.to_frame(index=False).to_dict("records"):
        yield tuple(str(value) for value in row.values())
