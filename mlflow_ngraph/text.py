"""Text that verbs, pages and reports share: words that depend on a number, tables of Markdown, values that JSON knows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def counted(number: int, one: str, many: str = "") -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A duration such as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a table, whatever is in its cells."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table.

    Parameters
    ----------
    titles : sequence of str
        Of the columns.
    rows : iterable of sequence of str
        As many cells each as there are titles.
    """
    yield markdown_row(titles)
    yield markdown_row(["---"] * len(titles))
    yield from map(markdown_row, rows)


def plain(value: Any) -> Any:
    """A value of a table as JSON knows it: what is missing or infinite is None, numbers are Python's own."""
    if missing(value):
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def missing(value: Any) -> bool:
    """Whether a table has no value there."""
    import pandas as pd

    return value is None or bool(pd.isna(value))
