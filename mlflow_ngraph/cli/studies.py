"""``mlflow-ngraph studies``: the ready-made studies."""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli import output, tables


@click.command()
@output.json_option
def studies(as_json: bool) -> int:
    """List the ready-made studies; any YAML file of the same form can be run as well."""
    from mlflow_ngraph.study import load, ready_made

    rows: list[dict[str, Any]] = []
    for name, path in ready_made().items():
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
    titles: list[tables.Column] = ["name", ("workloads", tables.RIGHT), ("compilers", tables.RIGHT)]
    titles += ["batch sizes", ("description", tables.PROSE)]
    tables.show(
        output.console(),
        titles,
        [
            (
                row["name"],
                len(row["workloads"]),
                len(row["compilers"]),
                " ".join(map(str, row["batch_sizes"])),
                row["description"],
            )
            for row in rows
        ],
    )
    return 0
