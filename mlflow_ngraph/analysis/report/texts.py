"""Numbers as people read them in a report; the same everywhere, and fit for a program that compares them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mlflow_ngraph.analysis.report.blocks import EMPTY, TableCell
from mlflow_ngraph.analysis.report.combined import Value

MINUS = "−"


def digits(number: float | None, significant: int = 4) -> str:
    """Four significant digits, without an exponent where it can be helped."""
    if number is None or not math.isfinite(number):
        return ""
    size = math.floor(math.log10(abs(number))) if number else 0
    if -6 <= size < 9:
        text = f"{number:.{max(0, significant - 1 - size)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{number:.{significant - 1}e}"
    return text.replace("-", MINUS)


def decimals(number: float | None, places: int = 2) -> str:
    """A fixed number of decimals, as in the paper's table of throughput."""
    return "" if number is None or not math.isfinite(number) else f"{number:.{places}f}".replace("-", MINUS)


def whole(number: float | None) -> str:
    """A whole number with thin spaces between groups of three digits."""
    return "" if number is None or not math.isfinite(number) else f"{number:,.0f}".replace(",", "\u202f")


def interval(low: float, high: float, significant: int = 4) -> str:
    """Both ends in brackets; empty where there is no interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{digits(low, significant)}, {digits(high, significant)}]"


def estimate(value: Value | None, *more: str) -> TableCell:
    """A number with its interval, and what else is to be said of it."""
    if value is None or not math.isfinite(value.value):
        return TableCell(EMPTY.text, joined(more))
    return TableCell(digits(value.value), joined([interval(value.low, value.high), *more]))


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
