"""Numbers with intervals, and lists, as text of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mlflow_ngraph.tables.sheet import EMPTY, Cell
from mlflow_ngraph.text import rounded
from mlflow_ngraph_report.combined import Value


def interval(low: float, high: float, significant: int = 4) -> str:
    """Both ends in brackets; empty without an interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{rounded(low, significant)}, {rounded(high, significant)}]"


def estimate(value: Value | None, *more: str) -> Cell:
    """Number with its interval and remarks."""
    if value is None or not math.isfinite(value.value):
        return Cell(EMPTY.text, joined(more))
    return Cell(rounded(value.value), joined([interval(value.low, value.high), *more]))


def joined(parts: Iterable[str], by: str = "; ") -> str:
    """Join the texts that are not empty."""
    return by.join(part for part in parts if part)


def listed(parts: Sequence[object], last: str = "and") -> str:
    """Enumerate in a sentence."""
    texts = list(map(str, parts))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}" if texts else "none"


def slug(text: str) -> str:
    """Part of a file name."""
    return re.sub(r"[^\w-]+", "-", text, flags=re.ASCII)
