"""``mlflow-ngraph sync``: record what was measured without a tracking server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output


@click.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True)
@click.option("--tracking-uri", metavar="URI", help="Where to record; by default what MLflow is configured to use.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment that holds the runs.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def sync(
    studies: tuple[str, ...], tracking_uri: str | None, experiment: str | None, home: Path | None, as_json: bool
) -> int:
    """Record studies from their journals; what is recorded already is left as it is.

    STUDY is the directory of a study, or the name of that directory in the home.
    """
    from mlflow_ngraph.runner import sync_study

    recorded: list[dict[str, Any]] = []
    for study in studies:
        directory = home_directory.study(study, home)
        wait = partial(click.echo, f"waiting: another process is running or recording {directory.name}", err=True)
        outcome = sync_study(directory, tracking_uri=tracking_uri, experiment=experiment, on_wait=wait)
        recorded.append(
            {"study_id": outcome.record.id, "directory": str(outcome.directory), "where": dict(outcome.where)}
        )
    if as_json:
        output.print_json({"recorded": recorded})
        return 0
    console = output.console()
    for row in recorded:
        console.print(f"recorded {row['study_id']}", style="bold")
        for what, where in row["where"].items():
            console.print(f"  {what.replace('_', ' ')}: {where}", soft_wrap=True)
    return 0
