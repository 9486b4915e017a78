"""Numbers with their intervals, and lists, as people read them in a report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mlflow_ngraph.tables.sheet import EMPTY, Cell
from mlflow_ngraph.text import rounded
from mlflow_ngraph_report.combined import Value


def interval(low: float, high: float, significant: int = 4) -> str:
    """Both ends in brackets; empty where there is no interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{rounded(low, significant)}, {rounded(high, significant)}]"


def estimate(value: Value | None, *more: str) -> Cell:
    """A number with its interval, and what else is to be said of it."""
    if value is None or not math.isfinite(value.value):
        return Cell(EMPTY.text, joined(more))
    return Cell(rounded(value.value), joined([interval(value.low, value.high), *more]))


def joined(parts: Iterable[str], by: str = "; ") -> str:
    """What there is of several texts."""
    return by.join(part for part in parts if part)


def listed(parts: Sequence[object], last: str = "and") -> str:
    """A list as in a sentence."""
    texts = list(map(str, parts))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}" if texts else "none"


def slug(text: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^\w-]+", "-", text, flags=re.ASCII)
