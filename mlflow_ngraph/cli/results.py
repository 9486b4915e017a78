"""The table at the end of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mlflow_ngraph.cli import tables
from mlflow_ngraph.metrics import TOUCHED, titled
from mlflow_ngraph.study import BASELINE
from mlflow_ngraph.tables.summary import (
    SummaryRow,
    fallback_note,
    measured_with,
    refers_to,
    shortfall,
    summary_rows,
)
from mlflow_ngraph.text import UNSTEADY_MARK, counted, rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import StudyRecord

_INTERVAL = "[95 %]"
"""In the title of a column: its figures have the ends of their 95 % intervals behind them."""


def print_results(record: StudyRecord, console: Console) -> None:
    """Every cell, best first within a workload and batch size; what is to be said of a cell stands below, each thing once."""
    rows, notes = summary_rows(record), tables.Footnotes()
    several = _several_precisions(rows)
    title = "speed-up" if record.baseline == BASELINE else titled("speed-up", record.baseline)
    columns: list[tables.Column] = [
        "workload",
        ("batch", tables.RIGHT),
        "compiler",
        *(["precision"] if several else []),
        (f"{title} {_INTERVAL}", tables.RIGHT),
        (f"samples/s {_INTERVAL}", tables.spare(1, tables.RIGHT)),
        ("p50 ms", tables.RIGHT),
        ("p99 ms", tables.spare(2, tables.RIGHT)),
        ("CPU %", tables.spare(4, tables.RIGHT)),
        ("compile s", tables.spare(3, tables.RIGHT)),
        ("cosine", tables.spare(5, tables.RIGHT)),
        "verdict",
    ]
    tables.show(console, columns, [_cells(row, notes, several=several) for row in rows])
    console.print()
    console.print(_tally(rows))
    for note in notes.lines("cell"):
        console.print(note, style="yellow", soft_wrap=True)
    for line in filter(None, (*refers_to(record), shortfall(record))):
        console.print(line, soft_wrap=True)
    for warning in (*_noise(rows), *_variables(rows)):
        console.print(warning)


def _several_precisions(rows: Sequence[SummaryRow]) -> bool:
    """Whether the precision tells rows apart, or is not the one asked for."""
    asked = {row.precision for row in rows}
    return len(asked) > 1 or any(row.precision_in_force not in (None, *asked) for row in rows)


def _cells(row: SummaryRow, notes: tables.Footnotes, *, several: bool) -> list[Text]:
    style = "bold green" if row.best else "" if row.verdict is Verdict.OK else "yellow"
    about = "; ".join(filter(None, (row.reason, fallback_note(row.fallback_nodes))))
    shown = [
        row.workload,
        str(row.batch),
        row.compiler,
        *([row.precisions] if several else []),
        row.speedup_mark + _with_ends(row.speedup, row.speedup_ci),
        _marked(row, _with_ends(row.throughput, row.throughput_ci)),
        _marked(row, _number(row.latency_p50_ms)),
        _marked(row, _number(row.latency_p99_ms)),
        _marked(row, _number(row.cpu_percent)),
        row.compile_text,
        "" if row.parity_cosine is None else f"{row.parity_cosine:.6f}",
        notes.marked(str(row.verdict), about),
    ]
    return [Text(text, style=style) for text in shown]


def _with_ends(value: float | None, ends: tuple[float, float] | None) -> str:
    """A figure with its interval; what is exact, as the speed-up of the baseline, needs none."""
    if value is None or ends is None or ends[0] == ends[1]:
        return _number(value)
    return f"{_number(value)} [{_number(ends[0])}, {_number(ends[1])}]"


def _tally(rows: Sequence[SummaryRow]) -> Text:
    """How many cells have which verdict."""
    counts = Counter(str(row.verdict) for row in rows)
    fine = counts.pop(str(Verdict.OK), 0)
    others = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    return Text(f"{len(rows)} cells: {fine} ok{others}", style="yellow" if others else "green")


def _marked(row: SummaryRow, figure: str) -> str:
    """A figure that noise touches, marked where there was any."""
    return (UNSTEADY_MARK if row.noise and figure else "") + figure


def _noise(rows: Sequence[SummaryRow]) -> Iterator[Text]:
    """What the mark means, and what disturbed most cells."""
    reasons = Counter(row.noise for row in rows if row.noise)
    if reasons:
        (reason, _), count = reasons.most_common(1)[0], reasons.total()
        yield Text(
            f"{UNSTEADY_MARK} unsteady, because the machine was not quiet ({counted(count, 'cell')}); {TOUCHED}. Such as: {reason}",
            style="yellow",
        )


def _variables(rows: Sequence[SummaryRow]) -> Iterator[Text]:
    """What the environment had that may make one runtime faster or slower."""
    for setting in dict.fromkeys(row.variables for row in rows if row.variables):
        yield Text(measured_with(setting), style="yellow")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else rounded(value, 3)
