"""What a part of a first contact found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["right", "wrong", "incomplete", "lacking"]
"""``right``: all that was seen was as it should be. ``wrong``: something was not. ``incomplete``: the time ran out before
enough was seen. ``lacking``: it cannot be tried here."""


@dataclass(frozen=True)
class Table:
    """Rows of text below a heading."""

    heading: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """How a part ended, in words and in numbers."""

    status: Status
    said: str
    """One line."""
    tables: Sequence[Table] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs, ready for JSON."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Finding:
        """What `as_json` wrote."""
        return cls(**{**found, "tables": tuple(Table(**table) for table in found["tables"])})


def worst(statuses: Sequence[Status]) -> Status:
    """The status of several things together; nothing at all is lacking."""
    order: tuple[Status, ...] = ("wrong", "incomplete", "right")
    return next((status for status in order if status in statuses), "lacking")
