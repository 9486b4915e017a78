"""``mlflow-ngraph results history``: one cell's metric over studies and commits, with changes of its level."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.filters import Asked, filter_options
from mlflow_ngraph.cli.kept import KeptCommand
from mlflow_ngraph.metrics import metric_title
from mlflow_ngraph.tables.sheet import Cell, Column, Head, Part, Sheet, faint, number, prose
from mlflow_ngraph.text import UNSTEADY_MARK, counted, csv_table, json_records, missing, percent, plain, rounded

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "markdown", "csv", "json")
_ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json"}


@click.command(cls=KeptCommand)
@click.argument("cell")
@filter_options
@click.option("--metric", metavar="NAME", default="throughput", show_default=True, help="What to follow.")
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@click.option(
    "--output", "target", metavar="FILE", help="Write there instead of printing; its ending tells the format."
)
@output.json_option
def history(cell: str, metric: str, form: str | None, target: str | None, as_json: bool, **given: Any) -> int:
    """Show what each study found of a cell, and where its level changed.

    CELL is an id, or LABEL/COMPILER/bBATCH as explain takes it. Studies of other machines are left out, and imported
    ones unless --studies names them by their ids.
    """
    asked = Asked(given)
    form = writing.form("json" if as_json else form, target, FORMATS, _ENDINGS)

    from mlflow_ngraph.analysis import study_names
    from mlflow_ngraph_changes.history import history as follow

    selection = asked.selection()
    frame = asked.read()
    selection.check(frame)
    frame, omitted = study_names.without_imported(selection.of(frame), selection.studies)
    if omitted:
        output.tell(f"note: {omitted}")
    table, about = follow(frame, cell, metric)
    if form == "csv":
        writing.write(csv_table(table), target)
    elif form == "json":
        writing.write(output.json_text({**about, "studies": json_records(table)}), target)
    else:
        writing.give(form, target, *_parts(table, about))
    return 0


def _parts(table: pd.DataFrame, cell: dict[str, Any]) -> Iterator[Part]:
    from mlflow_ngraph_changes.history import sparkline

    unit = "" if cell["unit"] == "1" else f" [{cell['unit']}]"
    yield Cell(
        f"{cell['label']} with {cell['compiler_label']}, {cell['precision']}, batch {cell['batch']} on {cell['device']}",
        tone="heading",
    )
    yield Cell(sparkline(table["value"].where(table["verdict"] == "ok").tolist()), tone="heading")
    columns: list[Head] = [
        *(
            "began (UTC)",
            "study",
            Column("commit", spare=1),
            number(f"{metric_title(cell['metric'], cell['baseline'])}{unit}"),
        ),
        *(number("95 % interval", spare=2), number("change"), prose("verdict")),
    ]
    yield Sheet("", columns, [_row(row) for _, row in table.iterrows()], faint(_notes(table, cell)))


def _row(row: pd.Series[Any]) -> list[str]:
    began = datetime.fromtimestamp(float(row["started_at"]), timezone.utc)
    commit = "" if missing(row["git_commit"]) else str(row["git_commit"])[:8]
    interval = "" if missing(row["ci_low"]) else f"{rounded(row['ci_low'])} to {rounded(row['ci_high'])}"
    change = "" if missing(row["change"]) else f"{'▲' if row['change'] > 0 else '▼'} {percent(row['change'])}"
    reason = "" if missing(row["reason"]) or row["verdict"] == "ok" or not row["reason"] else f": {row['reason']}"
    return [
        f"{began:%Y-%m-%d %H:%M}",
        str(row["study_id"]),
        commit,
        f"{UNSTEADY_MARK if row['unsteady'] else ''}{rounded(plain(row['value']))}",
        interval,
        change,
        f"{row['verdict']}{reason}",
    ]


def _notes(table: pd.DataFrame, cell: dict[str, Any]) -> list[str]:
    tally = f"{counted(len(table), 'study', 'studies')}; {counted(cell['changes'], 'change')} of level"
    lines = [f"{tally} (▲ ▼: where a new one begins, against the one before)"]
    if table["unsteady"].any():
        lines.append(f"{UNSTEADY_MARK} unsteady, because the machine was not quiet")
    if cell["models"] > 1:
        lines.append(f"the weights or code of the model changed: there are {cell['models']} of this name")
    if cell["machines"]:
        lines.append(f"left out: what {counted(cell['machines'], 'other machine')} found of it")
    return lines
