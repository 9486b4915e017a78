"""``mlflow-ngraph compare``: print or write a pivot of one metric over recorded results, or of its ratios."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, filter_options, tell
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import FoundRuns
    from mlflow_ngraph.analysis.pivot import Pivot
    from mlflow_ngraph.analysis.selection import Selection

FORMATS = ("table", "markdown", "csv", "json", "latex", "parquet")
_ENDINGS = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json", ".parquet": "parquet"}
_ROWS, _COLUMNS, _METRIC = "label,batch", "device,compiler_label", "throughput"


@click.command(cls=FilteredCommand)
@filter_options
@click.option("--metric", metavar="NAME", help=f"What to compare (default: {_METRIC}).")
@click.option("--rows", metavar="COLUMN,...", help=f"What stands in rows (default: {_ROWS}).")
@click.option("--columns", metavar="COLUMN,...", help=f"What stands in columns (default: {_COLUMNS}).")
@click.option("--relative-to", metavar="COLUMN=VALUE", help="Divide by this baseline, such as compiler=identity.")
@click.option(
    "--best",
    metavar="COLUMN,...",
    help="Only the best of all that are equal in these, and its ties; a cell says which one of several it is.",
)
@click.option(
    "--sort", metavar="COLUMN", help="Sort by a column of the rows, or by value; -COLUMN the other way round."
)
@click.option("--intervals", is_flag=True, help="Show the 95 % intervals beside the numbers.")
@click.option("--include", metavar="VERDICT,...", help="Also show numbers with these verdicts, marked as such.")
@click.option("--all", "everything", is_flag=True, help="Also show all numbers whose verdict is not ok.")
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@click.option(
    "--output", "target", metavar="FILE", help="Write there instead of printing; its ending tells the format."
)
@output.json_option
def compare(
    metric: str | None,
    rows: str | None,
    columns: str | None,
    relative_to: str | None,
    best: str | None,
    sort: str | None,
    intervals: bool,
    include: str | None,
    everything: bool,
    form: str | None,
    target: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Compare recorded results: the newest number of each cell, by default throughput of ok cells.

    Workloads, devices, flags, precisions, threads and batch sizes are never merged: what --rows and --columns do not tell
    apart is added to the rows, unless --best says of what the best is meant.
    """
    asked = Asked(given)
    form = _form("json" if as_json else form, target)

    from mlflow_ngraph.analysis.selection import baseline

    question = ComparisonRequest(
        rows=items(rows or _ROWS),
        columns=items(columns or _COLUMNS),
        metric=metric or _METRIC,
        selection=asked.selection(),
        include=[str(verdict) for verdict in Verdict] if everything else items(include),
        relative_to=baseline(relative_to) if relative_to else None,
        best=items(best),
        sort=sort or None,
    )
    _write(_answer(asked, question), form, target, intervals)
    return 0


@dataclass(frozen=True)
class ComparisonRequest:
    """Options of a comparison: everything that the answer depends on besides the results."""

    rows: list[str]
    columns: list[str]
    metric: str
    selection: Selection
    include: list[str]
    relative_to: tuple[str, str] | None
    best: list[str]
    sort: str | None


def _answer(asked: Asked, question: ComparisonRequest) -> Pivot:
    """The comparison: the one that this machine has kept, or a new one."""
    from mlflow_ngraph.analysis import answer_cache
    from mlflow_ngraph.analysis.pivot import Pivot

    runs = asked.find()
    answer = answer_cache.answer(
        asdict(question),
        runs if asked.cache else None,
        lambda: _compared(asked, question, runs),
        Pivot.from_plain,
    )
    tell(runs)
    return answer


def _compared(asked: Asked, question: ComparisonRequest, runs: FoundRuns) -> Pivot:
    from mlflow_ngraph.analysis import compare as comparing
    from mlflow_ngraph.analysis.pivot import Pivot

    more = [*question.best, *(question.relative_to or ())[:1]]
    frame = asked.read(comparing.needed(question.rows, question.columns, question.metric, more), runs)
    table = comparing.compare(frame, **vars(question))
    return Pivot.of(table)


def _form(asked: str | None, target: str | None) -> str:
    form = writing.form(asked, target, FORMATS, _ENDINGS)
    if form == "parquet" and not target:
        raise UsageError("format: parquet is no text: give --output FILE.parquet")
    return form


def _write(pivot: Pivot, form: str, target: str | None, intervals: bool) -> None:
    from mlflow_ngraph.cli import comparison

    if form == "table" and not target:
        comparison.show(pivot, intervals)
    elif form == "parquet":
        writing.write(comparison.long(pivot).to_parquet(index=False), target)
    else:
        writing.write(comparison.text(pivot, form, intervals), target)
