"""Dataclasses of a report: sections of tables, figures, texts, and placeholders with the reason for missing ones."""

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
    """A figure with its data."""

    key: str
    title: str
    caption: str
    data: pd.DataFrame
    draw: Callable[[], Canvas]
    """Draws the figure; called within `style.drawing`."""
    alternative: str
    """Text alternative."""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Missing:
    """Placeholder for a table or figure that cannot be made."""

    key: str
    title: str
    reason: str


@dataclass(frozen=True)
class Text:
    """A paragraph with its own heading, such as a finding."""

    key: str
    title: str
    paragraphs: Sequence[str]
    command: str = ""
    """Command that shows more."""
    evidence: pd.DataFrame | None = None
    """Numbers behind the text."""


ABSENT = "absent"
"""Title of the section with missing parts."""
Block = Sheet | Figure | Missing | Text


@dataclass(frozen=True)
class Section:
    """A section."""

    key: str
    title: str
    introduction: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class Report:
    """A report."""

    title: str
    subtitle: str
    made_by: str
    """The package and its version."""
    sections: Sequence[Section] = field(default_factory=tuple)

    def blocks(self) -> list[Block]:
        """Blocks of all sections in order."""
        return [block for section in self.sections for block in section.blocks]
