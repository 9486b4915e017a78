"""``mlflow-ngraph results diff``: compare two runs in flags, versions, machine and its state, and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.kept import KeptCommand
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.tables.sheet import Cell, Sheet, faint, number, prose
from mlflow_ngraph.text import counted, json_records, percent, percents, plain, rounded

if TYPE_CHECKING:
    import pandas as pd


@click.command(cls=KeptCommand)
@click.argument("left")
@click.argument("right")
@click.option("--tracking-uri", metavar="URI", help="Where to read; by default what MLflow is configured to use.")
@click.option("--metric", metavar="NAME", default="throughput", show_default=True, help="The results to compare.")
@click.option("--all", "everything", is_flag=True, help="Also show results that do not differ.")
@output.json_option
def diff(left: str, right: str, tracking_uri: str | None, metric: str, everything: bool, as_json: bool) -> int:
    """Show what differs between two runs: flags, versions, the machine and its state, and results.

    LEFT and RIGHT are ids of two study runs or of two lane runs, or names or ids of studies: of a name the latest one.
    """
    from mlflow_ngraph_changes import difference

    run, other = (difference.read(named, tracking_uri) for named in (left, right))
    if run.run_id == other.run_id and left != run.run_id:
        raise UsageError(f"left and right are the same run, {run.name}: name another one by its id")
    table, about = difference.difference(run, other, metric)
    shown = table if everything else table[table["differs"]]
    if as_json:
        output.print_json({"left": run.run_id, "right": other.run_id, **about, "differences": json_records(table)})
        return 0
    head = Cell(f"left: {run.name}; right: {other.name}", tone="heading")
    parts = [(aspect, shown[shown["aspect"] == aspect]) for aspect in difference.ASPECTS]
    sheets = [_sheet(aspect, metric, rows) for aspect, rows in parts if not rows.empty]
    tables.show(output.console(), head, *sheets, *faint(_notes(table, about)))
    return 0


def _sheet(aspect: str, metric: str, table: pd.DataFrame) -> Sheet:
    rows = [row for _, row in table.iterrows()]
    texts = [[str(row[name]) for name in ("name", "left", "right")] for row in rows]
    if aspect != "results":
        return Sheet(aspect, [prose(""), prose("left"), prose("right")], texts)
    columns = [prose(""), prose(f"{metric}, left"), prose("right"), number("change"), number("95 % interval")]
    return Sheet(aspect, columns, [[*text, *_change(row)] for text, row in zip(texts, rows, strict=True)])


def _change(row: pd.Series[Any]) -> tuple[str, str]:
    return percent(plain(row["change"])), percents(row["ci_low"], row["ci_high"])


def _notes(table: pd.DataFrame, about: dict[str, Any]) -> list[str]:
    results = table[table["aspect"] == "results"]
    count = f"results: {int(results['differs'].sum())} of {about['cells']} cells that both have differ"
    lines = [f"{count} (tested together, Holm at 5 %; a change is that of the right run)"]
    notices = results["notices"].dropna() if len(results) else results
    if len(notices):
        least, most = (rounded(100 * float(share), 2) for share in (notices.min(), notices.max()))
        lines += [
            f"noticed would be changes {f'of {least} %' if least == most else f'of {least} to {most} %'} and more"
        ]
    blind = int((results["p"].notna() & results["notices"].isna()).sum()) if len(results) else 0
    if blind:
        lines += [f"nothing could be noticed in {counted(blind, 'cell')}: the rounds are too few, or differ too much"]
    lines += [
        f"{about[key]} cells are in the {side} run alone"
        for key, side in (("left_only", "left"), ("right_only", "right"))
        if about[key]
    ]
    same = [aspect for aspect in ("study", "flags", "versions", "machine") if not (table["aspect"] == aspect).any()]
    return [*lines, *([f"equal: {', '.join(same)}"] if same else [])]
