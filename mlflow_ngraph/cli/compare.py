"""``mlflow-ngraph compare``: recorded results side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.request import items, whole
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "markdown", "csv", "json")
_ROWS, _COLUMNS, _METRIC = "label,batch", "device,compiler_label", "throughput"


@click.command()
@click.option("--tracking-uri", metavar="URI", help="Where to read; by default what MLflow is configured to use.")
@click.option("--experiment", "experiments", metavar="NAME,...", help="Read these experiments; all of them by default.")
@click.option("--studies", metavar="NAME,...", help="Only these studies.")
@click.option("--workloads", metavar="NAME,...", help="Only these workloads.")
@click.option("--devices", metavar="NAME,...", help="Only these devices.")
@click.option("--compilers", metavar="NAME,...", help="Only these compilers.")
@click.option("--batch-sizes", metavar="N,...", help="Only these batch sizes.")
@click.option("--metric", metavar="NAME", help=f"What to compare (default: {_METRIC}).")
@click.option("--rows", metavar="COLUMN,...", help=f"What stands in rows (default: {_ROWS}).")
@click.option("--columns", metavar="COLUMN,...", help=f"What stands in columns (default: {_COLUMNS}).")
@click.option("--include", metavar="VERDICT,...", help="Also show numbers with these verdicts, marked as such.")
@click.option("--all", "everything", is_flag=True, help="Also show all numbers whose verdict is not ok.")
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@output.json_option
def compare(
    tracking_uri: str | None,
    experiments: str | None,
    studies: str | None,
    devices: str | None,
    batch_sizes: str | None,
    metric: str | None,
    rows: str | None,
    columns: str | None,
    include: str | None,
    everything: bool,
    form: str | None,
    as_json: bool,
    **filters: str | None,
) -> int:
    """Compare recorded results: the newest number of each cell, by default throughput of ok cells."""
    form = "json" if as_json else form or "table"
    if form not in FORMATS:
        raise UsageError(f"format: expected {', '.join(FORMATS)}, found {form!r}")
    batches = [whole("batch-sizes", text) for text in items(batch_sizes)]

    from mlflow_ngraph.analysis import compare as comparing
    from mlflow_ngraph.analysis import results

    frame = results.load(tracking_uri, items(experiments) or None, studies=items(studies) or None)
    if frame.empty:
        raise UsageError("nothing is recorded there yet: run 'mlflow-ngraph benchmark' or 'mlflow-ngraph sync' first")
    table = comparing.compare(
        frame,
        rows=items(rows or _ROWS),
        columns=items(columns or _COLUMNS),
        metric=metric or _METRIC,
        devices=items(devices) or None,
        batch_sizes=batches or None,
        include=[str(verdict) for verdict in Verdict] if everything else items(include),
        **{name: items(text) or None for name, text in filters.items()},
    )
    _print(table, form)
    return 0


def _print(table: pd.DataFrame, form: str) -> None:
    if form == "json":
        output.print_json({str(key): value for key, value in table.attrs.items()})
    elif form == "csv":
        click.echo(_flat(table).to_csv(index=False), nl=False)
    elif form == "markdown":
        click.echo(_markdown(_flat(_texts(table))))
    else:
        _show(table)


def _show(table: pd.DataFrame) -> None:
    flat, spanned = _flat(_texts(table)), table.index.nlevels
    console = output.console()
    titles = [(str(name), {} if index < spanned else output.RIGHT) for index, name in enumerate(flat.columns)]
    console.print(output.table(titles, [[str(value) for value in row] for row in flat.itertuples(index=False)]))
    unit = "" if table.attrs["unit"] == "1" else f" in {table.attrs['unit']}"
    left_out = "".join(f", {count} {verdict}" for verdict, count in table.attrs["left_out"].items())
    note = f"; left out{left_out[1:]} (--include or --all shows them)" if left_out else ""
    console.print(f"\n{table.attrs['metric']}{unit} of {table.attrs['cells']} cells{note}", style="dim")
    in_force = _precisions(table)
    if len(in_force) == 1:
        console.print(f"precision in force: {in_force.pop()}", style="dim")


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Row names as ordinary columns, and one line of column names."""
    flat = table.copy()
    flat.columns = [" ".join(names.values()) for names in _names(table.columns)]
    flat_rows: pd.DataFrame = flat.reset_index()
    return flat_rows


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers as text, each with what makes it different: its precision, its verdict, nodes that fell back."""
    order = [str(name) for name in (*table.index.names, *table.columns.names)]
    several = len(_precisions(table)) > 1
    by_place = {tuple(found[name] for name in order): _text(found, several) for found in table.attrs["values"]}
    columns = [tuple(names.values()) for names in _names(table.columns)]
    texts: pd.DataFrame = table.astype(object)
    for index, names in enumerate(_names(table.index)):
        texts.iloc[index] = [by_place.get((*names.values(), *column), "") for column in columns]
    return texts


def _text(found: dict[str, Any], several_precisions: bool) -> str:
    from mlflow_ngraph.analysis.summary import fallback_note

    verdict = "" if found["verdict"] == str(Verdict.OK) else found["verdict"]
    notes = ", ".join(filter(None, (verdict, fallback_note(found["fallback_nodes"]))))
    precision = f" {found['precision_in_force']}" if several_precisions and found["precision_in_force"] else ""
    return f"{found['value']:.4g}{precision}" + (f" ({notes})" if notes else "")


def _precisions(table: pd.DataFrame) -> set[str]:
    """The precisions that the shown cells computed in."""
    return {found["precision_in_force"] for found in table.attrs["values"] if found["precision_in_force"]}


def _names(index: pd.Index[Any]) -> list[dict[str, str]]:
    """What stands at each place of an axis, by the name of the column it came from."""
    frame = index.to_frame(index=False)
    return [{str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _markdown(flat: pd.DataFrame) -> str:
    lines = [list(map(str, flat.columns)), ["---"] * len(flat.columns)]
    lines += [[str(value) for value in row] for row in flat.itertuples(index=False)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
