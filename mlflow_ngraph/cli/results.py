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
from mlflow_ngraph.tables.summary import SummaryRow, measured_with, refers_to, summary_rows
from mlflow_ngraph.text import UNSTEADY_MARK, counted, rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import StudyRecord

_NARROW = 100
_WIDE = 130


def print_results(record: StudyRecord, console: Console) -> None:
    """Every cell, best first within a workload and batch size; what is not ``ok`` is marked and explained."""
    rows = summary_rows(record)
    precise = _tells_precision(rows, console.width)
    title = "speed-up" if record.baseline == BASELINE else titled("speed-up", record.baseline)
    columns: list[tables.Column] = ["workload", ("batch", tables.RIGHT), "compiler", (title, tables.RIGHT)]
    columns += [("samples/s", tables.RIGHT), ("p50 ms", tables.RIGHT)]
    if console.width >= _NARROW:
        columns += [("CPU %", tables.RIGHT), ("compile s", tables.RIGHT)]
    if precise:
        columns += ["precision"]
    if console.width >= _WIDE:
        columns += [("cosine", tables.RIGHT)]
    columns += [("verdict", tables.PROSE)]
    tables.show(console, columns, [_cells(row, console.width, precise=precise) for row in rows])
    console.print()
    console.print(_tally(rows))
    for line in refers_to(record):
        console.print(line, markup=False, soft_wrap=True)
    for note in (*_noise(rows), *_variables(rows)):
        console.print(note)


def _tells_precision(rows: Sequence[SummaryRow], width: int) -> bool:
    """Where there is little room, the precision is shown only if it tells rows apart or is not the one asked for."""
    asked = {row.precision for row in rows}
    return width >= _WIDE or len(asked) > 1 or any(row.precision_in_force not in (None, *asked) for row in rows)


def _cells(row: SummaryRow, width: int, *, precise: bool) -> list[Text]:
    style = "bold green" if row.best else "" if row.verdict is Verdict.OK else "yellow"
    spread = ""
    if row.throughput_ci is not None and width >= _WIDE:
        spread = " [{}, {}]".format(*map(rounded, row.throughput_ci))
    shown = [row.workload, str(row.batch), row.compiler, _speedup(row, width), _absolute(row, row.throughput) + spread]
    shown += [_absolute(row, row.latency_p50_ms)]
    if width >= _NARROW:
        shown += [_absolute(row, row.cpu_percent), row.compile_text]
    if precise:
        shown += [row.precisions]
    if width >= _WIDE:
        shown += ["" if row.parity_cosine is None else f"{row.parity_cosine:.6f}"]
    verdict = row.verdict_text + (f": {row.reason}" if row.reason else "")
    return [*(Text(text, style=style) for text in shown), Text(verdict, style=style)]


def _speedup(row: SummaryRow, width: int) -> str:
    """Two decimals, with the 95 % interval where there is room."""
    if row.speedup is None:
        return ""
    if row.speedup_ci is None or width < _WIDE or row.speedup_ci[0] == row.speedup_ci[1]:
        return f"{row.speedup_mark}{row.speedup:.2f}"
    return f"{row.speedup_mark}{row.speedup:.2f} [{row.speedup_ci[0]:.2f}, {row.speedup_ci[1]:.2f}]"


def _tally(rows: Sequence[SummaryRow]) -> Text:
    """How many cells have which verdict."""
    counts = Counter(str(row.verdict) for row in rows)
    fine = counts.pop(str(Verdict.OK), 0)
    others = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    return Text(f"{len(rows)} cells: {fine} ok{others}", style="yellow" if others else "green")


def _absolute(row: SummaryRow, value: float | None) -> str:
    """A figure that noise touches, marked where there was any."""
    return (UNSTEADY_MARK if row.noise and value is not None else "") + _number(value)


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
