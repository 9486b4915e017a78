"""``mlflow-ngraph study list``: the ready-made studies."""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import require_known
from mlflow_ngraph.tables.sheet import Head, Sheet, number, prose


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@output.json_option
def studies(names: tuple[str, ...], as_json: bool) -> int:
    """List the ready-made studies, or show those of these NAMEs; any YAML file of the same form can be run as well."""
    from mlflow_ngraph.study import load, ready_made

    rows: list[dict[str, Any]] = []
    known = ready_made()
    require_known("ready-made study", names, known)
    for name, path in known.items():
        if names and name not in names:
            continue
        study = load(name)
        rows.append(
            {
                "name": name,
                "description": study.description,
                "workloads": [str(choice.parsed()) for choice in study.workloads],
                "compilers": [choice.label for choice in study.compilers],
                "batch_sizes": study.batch_sizes,
                "repetitions": study.repetitions,
                "path": str(path),
            }
        )
    if as_json:
        output.print_json({"studies": rows})
        return 0
    if names:
        _show(rows)
        return 0
    columns: list[Head] = ["name", number("workloads"), number("compilers"), "batch sizes", prose("description")]
    shown = [
        (
            row["name"],
            len(row["workloads"]),
            len(row["compilers"]),
            " ".join(map(str, row["batch_sizes"])),
            row["description"],
        )
        for row in rows
    ]
    tables.show(output.console(), Sheet("", columns, shown))
    return 0


def _show(rows: list[dict[str, Any]]) -> None:
    """All of some studies, a line for each thing."""
    console = output.console()
    for row in rows:
        console.print(row["name"], style="bold")
        for name, value in row.items():
            if name != "name":
                shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
                console.print(f"  {name.replace('_', ' ')}: {shown}", soft_wrap=True)
