"""Format text that verbs, pages and reports share: numbers, plurals, durations, untrusted text, CSV, JSON values."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal or a reader of lines would obey rather than show: escapes, line breaks, changes of direction."""
REPLACEMENT = "\ufffd"
MINUS = "−"
_FORMULA = ("=", "+", "-", "@")
LONGEST = 100
"""Characters of a value that a message shows."""
UNSTEADY_MARK = "~"
"""Before a figure that what disturbed the machine is in."""
NO_INTERVAL = "no interval: the rounds differ too much"
"""Mark of a figure whose interval would be wider than `mlflow_ngraph.estimates.WIDEST`."""


def harmless(text: str) -> str:
    """Format untrusted text as one line without control sequences of terminals."""
    return CONTROLS.sub(REPLACEMENT, text)


def shortened(value: Any) -> str:
    """Format a value as Python does, cut where it is long: a number may have thousands of digits."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too long to be shown"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def brief(text: str, limit: int) -> str:
    """Put text on one line, cut at a number of characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def csv_cell(text: str) -> str:
    """Escape text that a spreadsheet would run as a formula."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def csv_table(frame: pd.DataFrame) -> str:
    """Format a table as CSV without formulas."""
    guarded = {
        name: frame[name].map(lambda value: csv_cell(value) if isinstance(value, str) else value)
        for name in frame.columns
        if frame[name].dtype.kind not in "iufb"
    }
    return str(frame.assign(**guarded).rename(columns=lambda name: csv_cell(str(name))).to_csv(index=False))


def rounded(value: float | None, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits, and no fewer than its integer part; empty if missing."""
    if value is None or not math.isfinite(value):
        return ""
    size = math.floor(math.log10(abs(value))) if value else 0
    if not -6 <= size < 15:
        return f"{value:.{digits}g}".replace("-", MINUS)
    text = decimals(value, max(0, digits - 1 - size))
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(value: float | None, places: int = 2) -> str:
    """Format a number with fixed decimals; empty if missing."""
    if value is None or not math.isfinite(value):
        return ""
    shown = round(value, places) + 0.0  # no negative zero
    return f"{shown:.{places}f}".replace("-", MINUS)


def with_thousands(value: float | None) -> str:
    """Format an integer with thin spaces between groups of three digits; empty if missing."""
    return "" if value is None or not math.isfinite(value) else f"{value:,.0f}".replace(",", "\u202f")


def percent(share: float | None) -> str:
    """Format a change with its sign, ``+12.3 %``; empty if missing."""
    return "" if share is None or not math.isfinite(share) else f"{100 * share:+.1f} %".replace("-", MINUS)


def percents(low: float | None, high: float | None) -> str:
    """Format the interval of a change; empty if there is none."""
    return "" if missing(low) else f"{percent(low)} to {percent(high)}"


def counted(number: int, one: str, many: str = "") -> str:
    """Format a count with its noun: ``1 cell``, ``2 cells``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Format a duration as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plain(value: Any) -> Any:
    """Convert a value for JSON: missing or infinite becomes None, numbers become Python's own."""
    if missing(value):
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a table for JSON."""
    return [{str(name): plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def unsteady_mark(unsteady: Any, metric: str) -> str:
    """The mark of a metric that noise touches, by the column ``unsteady`` of its row; else nothing."""
    return UNSTEADY_MARK if not missing(unsteady) and metric in unsteady.split(",") else ""


def missing(value: Any) -> bool:
    """True if a value of a table is missing."""
    import pandas as pd

    return value is None or bool(pd.isna(value))
