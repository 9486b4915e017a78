"""What a report is made of: sections with tables, figures, texts, and what is missing with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class TableCell:
    """One place of a table."""

    text: str
    detail: str = ""
    """In small type beneath: an interval, or what is special about the number."""

    @property
    def plain(self) -> str:
        """Everything in one line."""
        return f"{self.text} {self.detail}".strip()


EMPTY = TableCell("–")


@dataclass(frozen=True)
class Column:
    """How a column of a table is headed."""

    title: str
    group: str = ""
    """Stands above it, once for neighbours of the same group."""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A table for people, and the numbers behind it."""

    key: str
    """Short and unique, such as ``t6``; names the anchor and the file."""
    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[TableCell]]
    data: pd.DataFrame
    """What the table shows, in full precision and one fact a column."""
    notes: Sequence[str] = ()
    names: int = 1
    """How many of the first columns name the row."""
    hidden: int = 0
    """Rows that are only in ``data``."""


@dataclass(frozen=True)
class Figure:
    """A figure, and the numbers that it draws."""

    key: str
    title: str
    caption: str
    data: pd.DataFrame
    draw: Callable[[], Canvas]
    """Draws it; called within `style.drawing`."""
    alternative: str
    """What it shows, in words, for who cannot see it."""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Missing:
    """What stands in the place of a table or figure that cannot be made."""

    key: str
    title: str
    reason: str


@dataclass(frozen=True)
class Text:
    """A paragraph under a heading of its own, such as a finding."""

    key: str
    title: str
    paragraphs: Sequence[str]
    command: str = ""
    """What shows more, as one types it."""
    evidence: pd.DataFrame | None = None
    """The numbers that it stands on."""


ABSENT = "absent"
"""The section of what cannot be made."""
Block = Table | Figure | Missing | Text


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    key: str
    title: str
    introduction: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class Report:
    """A whole report."""

    title: str
    subtitle: str
    made_by: str
    """The package and its version."""
    sections: Sequence[Section] = field(default_factory=tuple)

    def blocks(self) -> list[Block]:
        """All parts of all sections, in their order."""
        return [block for section in self.sections for block in section.blocks]
