"""Print the engine that `engine pull` chose, as text or JSON: figures, reasons, and engines passed over."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.analysis import undecided
from mlflow_ngraph.analysis.ranking import FIGURES
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tables.sheet import Sheet, number
from mlflow_ngraph.text import UNSTEADY_MARK, rounded, unsteady_mark

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.ranking import Candidate
    from mlflow_ngraph.release.best import BestEngine

_SHOWN = 8
"""Number of passed-over engines that are shown."""


def show(answer: BestEngine) -> None:
    """Print the engine with its figures, those that were passed over, and the next best."""
    console = output.console()
    chosen = answer.chosen
    row = chosen.row
    if answer.rivals:
        console.print(_undecided(answer), style="yellow", markup=False, soft_wrap=True)
    title = "looks best" if answer.rivals else "chosen"
    console.print(f"{title}: {chosen.name}", style="bold", markup=False)
    on = f"models:/{chosen.model_id}, measured on {row['device']} {_day(row['started_at'])} by study {row['study']}"
    console.print(on, markup=False, soft_wrap=True)
    figures = [(name, chosen.figure(name)) for name in dict.fromkeys((chosen.metric, *FIGURES))]
    known = [(name, CELL_METRICS[name].unit) for name, figure in figures if figure is not None]
    rows = [(name, _text(chosen, name), "" if unit == "1" else unit) for name, unit in known]
    tables.show(console, Sheet("", ["figure", number("value"), "unit"], rows))
    if any(text.startswith(UNSTEADY_MARK) for _, text, _ in rows):
        console.print(f"{UNSTEADY_MARK} unsteady, because the machine was not quiet", style="dim", markup=False)
    console.print(_why(answer), markup=False, soft_wrap=True)
    for candidate, reason in answer.passed_over[:_SHOWN]:
        said = f"passed over: {candidate.name}, {chosen.metric} {_text(candidate, chosen.metric)}: {reason}"
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    if len(answer.passed_over) > _SHOWN:
        console.print(f"and {len(answer.passed_over) - _SHOWN} more were passed over; --json has all", style="yellow")
    console.print()


def document(answer: BestEngine) -> dict[str, Any]:
    """The answer as JSON."""
    return {
        "objective": answer.chosen.metric,
        "considered": answer.considered,
        "left_out": dict(answer.left_out),
        "chosen": _described(answer.chosen),
        "undecided": [rival.to_plain() for rival in answer.rivals],
        "next_best": _described(answer.next_best) if answer.next_best is not None else None,
        "passed_over": [{**_described(candidate), "reason": reason} for candidate, reason in answer.passed_over],
    }


def _undecided(answer: BestEngine) -> str:
    chosen = answer.chosen
    figure = undecided.figure(chosen.value, chosen.metric, CELL_METRICS[chosen.metric].unit)
    return undecided.sentence(answer.rivals, chosen.row, figure)


def _why(answer: BestEngine) -> str:
    chosen, other = answer.chosen, answer.next_best
    fitting = ", of those that fit this machine" if answer.passed_over else ""
    said = f"it is the best by {chosen.metric} of {answer.considered} cells with an engine{fitting}"
    if answer.left_out:
        said += f" ({', '.join(f'{count} {why}' for why, count in answer.left_out.items())} left out)"
    if other is None:
        return f"{said}; there is no other engine behind it"
    apart = "" if answer.significant else ", which cannot be told from it"
    return f"{said}; the next by its figures is {other.name} with {_text(other, chosen.metric)}{apart}"


def _text(candidate: Candidate, metric: str) -> str:
    figure = candidate.figure(metric)
    if figure is None:
        return "–"
    value, low, high = figure
    mark = unsteady_mark(candidate.row.get("unsteady"), metric)
    return (
        mark + rounded(value) + (f" [{rounded(low)}, {rounded(high)}]" if low is not None and high is not None else "")
    )


def _described(candidate: Candidate) -> dict[str, Any]:
    row = candidate.row
    names = ("workload", "label", "compiler", "compiler_label", "precision", "precision_in_force", "batch", "device")
    figures = {}
    for name in dict.fromkeys((candidate.metric, *FIGURES)):
        figure = candidate.figure(name)
        if figure is not None:
            figures[name] = dict(zip(("value", "ci_low", "ci_high"), figure, strict=True))
    return {
        "model_id": candidate.model_id,
        **{name: row[name] for name in names},
        **{name: row[name] for name in ("study", "study_id", "cell", "tracking_uri")},
        "figures": figures,
    }


def _day(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d}"
