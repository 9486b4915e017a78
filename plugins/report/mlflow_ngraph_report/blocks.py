"""What a report is made of: sections with tables, figures, texts, and what is missing with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from mlflow_ngraph.tables.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


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
Block = Sheet | Figure | Missing | Text


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
