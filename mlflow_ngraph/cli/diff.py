"""``mlflow-ngraph diff``: what differs between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.text import missing, plain, rounded

if TYPE_CHECKING:
    import pandas as pd


@click.command()
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
    from mlflow_ngraph.analysis import difference

    run, other = (difference.read(named, tracking_uri) for named in (left, right))
    if run.run_id == other.run_id and left != run.run_id:
        raise UsageError(f"left and right are the same run, {run.name}: name another one by its id")
    table = difference.difference(run, other, metric)
    shown = table if everything else table[table["differs"]]
    if as_json:
        rows = [{key: plain(value) for key, value in row.items()} for row in table.to_dict("records")]
        output.print_json({"left": run.run_id, "right": other.run_id, **table.attrs, "differences": rows})
        return 0
    console = output.console()
    console.print(f"left: {run.name}; right: {other.name}", style="bold", soft_wrap=True)
    for aspect in difference.ASPECTS:
        rows = shown[shown["aspect"] == aspect]
        if rows.empty:
            continue
        console.print(aspect, style="bold")
        tables.show(console, _titles(aspect, metric), [_row(row, aspect) for _, row in rows.iterrows()])
        console.print()
    for line in _notes(table):
        console.print(line, style="dim")
    return 0


def _titles(aspect: str, metric: str) -> list[tables.Column]:
    fold = tables.PROSE
    if aspect != "results":
        return [("", fold), ("left", fold), ("right", fold)]
    return [
        ("", fold),
        (f"{metric}, left", fold),
        ("right", fold),
        ("change", tables.RIGHT),
        ("95 % interval", tables.RIGHT),
    ]


def _row(row: pd.Series[Any], aspect: str) -> list[str]:
    texts = [str(row["name"]), str(row["left"]), str(row["right"])]
    if aspect != "results":
        return texts
    if missing(row["change"]):
        return [*texts, "", ""]
    interval = "" if missing(row["ci_low"]) else f"{_percent(row['ci_low'])} to {_percent(row['ci_high'])}"
    return [*texts, _percent(row["change"]), interval]


def _notes(table: pd.DataFrame) -> list[str]:
    attrs = table.attrs
    results = table[table["aspect"] == "results"]
    count = f"results: {int(results['differs'].sum())} of {attrs['cells']} cells that both have differ"
    lines = [f"{count} (tested together, Holm at 5 %; a change is that of the right run)"]
    notices = results["notices"].dropna() if len(results) else results
    if len(notices):
        least, most = (rounded(100 * float(share), 2) for share in (notices.min(), notices.max()))
        lines += [
            f"noticed would be changes {f'of {least} %' if least == most else f'of {least} to {most} %'} and more"
        ]
    lines += [
        f"{attrs[key]} cells are in the {side} run alone"
        for key, side in (("left_only", "left"), ("right_only", "right"))
        if attrs[key]
    ]
    same = [aspect for aspect in ("study", "flags", "versions", "machine") if not (table["aspect"] == aspect).any()]
    return [*lines, *([f"equal: {', '.join(same)}"] if same else [])]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")
