"""Result of a part of a first contact, with its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mlflow_ngraph.tables.sheet import Sheet

Status = Literal["right", "wrong", "incomplete", "lacking"]
"""``right``: all that was seen was as it should be. ``wrong``: something was not. ``incomplete``: the time ran out before
enough was seen. ``lacking``: it cannot be tried here."""


@dataclass(frozen=True)
class Finding:
    """Result of a part, in words and in numbers."""

    status: Status
    said: str
    """One line."""
    tables: Sequence[Sheet] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, ready for JSON."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        tables = [
            {
                "heading": sheet.title,
                "titles": [column.name for column in sheet.heads],
                "rows": [[cell.plain for cell in row] for row in sheet.cells],
            }
            for sheet in self.tables
        ]
        return {**asdict(self), "tables": tables}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Finding:
        tables = tuple(Sheet(table["heading"], table["titles"], table["rows"]) for table in found["tables"])
        return cls(**{**found, "tables": tables})


def worst(statuses: Sequence[Status]) -> Status:
    """The status of several things together; nothing at all is lacking."""
    order: tuple[Status, ...] = ("wrong", "incomplete", "right")
    return next((status for status in order if status in statuses), "lacking")
