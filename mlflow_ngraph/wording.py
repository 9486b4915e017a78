"""Words that depend on a number."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number} {one if number == 1 else many or one + 's'}"
