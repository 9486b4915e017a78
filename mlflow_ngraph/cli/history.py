"""``mlflow-ngraph history``: one cell over time and commits."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables, writing
from mlflow_ngraph.cli.filters import Asked, filter_options
from mlflow_ngraph.cli.kept import KeptCommand
from mlflow_ngraph.metrics import titled
from mlflow_ngraph.text import counted, csv_table, markdown_table, missing, plain, rounded

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

    CELL is an id, or LABEL/COMPILER/bBATCH as explain takes it. Studies of other machines are left out.
    """
    asked = Asked(given)
    form = writing.form("json" if as_json else form, target, FORMATS, _ENDINGS)

    from mlflow_ngraph.analysis.history import history as follow

    selection = asked.selection()
    frame = asked.read()
    selection.check(frame)
    table = follow(selection.of(frame), cell, metric)
    if form == "table" and not target:
        _show(table)
    else:
        writing.write(_text(table, form), target)
    return 0


def _text(table: pd.DataFrame, form: str) -> str:
    if form == "csv":
        return csv_table(table)
    if form == "json":
        rows = [{key: plain(value) for key, value in row.items()} for row in table.to_dict("records")]
        return output.json_text({**table.attrs, "studies": rows})
    body = "\n".join(markdown_table(_titles(table), (_row(row) for _, row in table.iterrows())))
    return "\n".join([*_head(table), "", body, "", *_notes(table), ""])


def _show(table: pd.DataFrame) -> None:
    console = output.console()
    for line in _head(table):
        console.print(line, style="bold")
    options = [{}, {}, tables.spare(1), tables.RIGHT, tables.spare(2, tables.RIGHT), tables.RIGHT, tables.PROSE]
    columns: list[tables.Column] = list(zip(_titles(table), options, strict=True))
    tables.show(console, columns, [_row(row) for _, row in table.iterrows()])
    console.print()
    for line in _notes(table):
        console.print(line, style="dim")


def _head(table: pd.DataFrame) -> list[str]:
    from mlflow_ngraph.analysis.history import sparkline

    cell = table.attrs
    name = (
        f"{cell['label']} with {cell['compiler_label']}, {cell['precision']}, batch {cell['batch']} on {cell['device']}"
    )
    ok = table["value"].where(table["verdict"] == "ok")
    return [name, sparkline(ok.tolist())]


def _titles(table: pd.DataFrame) -> list[str]:
    unit = "" if table.attrs["unit"] == "1" else f" [{table.attrs['unit']}]"
    return [
        "began (UTC)",
        "study",
        "commit",
        f"{titled(table.attrs['metric'], table.attrs['baseline'])}{unit}",
        "95 % interval",
        "change",
        "verdict",
    ]


def _row(row: pd.Series[Any]) -> list[str]:
    began = datetime.fromtimestamp(float(row["started_at"]), timezone.utc)
    commit = "" if missing(row["git_commit"]) else str(row["git_commit"])[:8]
    value = "" if missing(row["value"]) else rounded(row["value"])
    interval = "" if missing(row["ci_low"]) else f"{rounded(row['ci_low'])} to {rounded(row['ci_high'])}"
    change = (
        ""
        if missing(row["change"])
        else f"{'▲' if row['change'] > 0 else '▼'} {100 * row['change']:+.1f} %".replace("-", "−")
    )
    reason = "" if missing(row["reason"]) or row["verdict"] == "ok" or not row["reason"] else f": {row['reason']}"
    return [
        f"{began:%Y-%m-%d %H:%M}",
        str(row["study_id"]),
        commit,
        value,
        interval,
        change,
        f"{row['verdict']}{reason}",
    ]


def _notes(table: pd.DataFrame) -> list[str]:
    count, changes, machines = len(table), table.attrs["changes"], table.attrs["machines"]
    tally = f"{counted(count, 'study', 'studies')}; {counted(changes, 'change')} of level"
    lines = [f"{tally} (▲ ▼: where a new one begins, against the one before)"]
    if machines:
        lines.append(f"left out: what {counted(machines, 'other machine')} found of it")
    return lines
