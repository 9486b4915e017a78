"""``mlflow-ngraph study cleanup``: list RUNNING runs, and with ``--yes`` end those whose process has died."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.lists import SECONDS, items, quantity
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.tables.sheet import Column, Head, Sheet, number, prose
from mlflow_ngraph.text import counted


@click.command()
@click.option("--tracking-uri", metavar="URI", help="Which server; by default what MLflow is configured to use.")
@click.option("--experiment", metavar="NAME,...", multiple=True, help="Only these experiments; all by default.")
@click.option(
    "--silent-for", metavar="AGE", default="1d", show_default=True,
    help="A study of another machine is dead when it gave no sign of life for so long: 12h, 2d.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="End them; without it they are only listed.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def cleanup(
    tracking_uri: str | None,
    experiment: tuple[str, ...],
    silent_for: str,
    yes: bool,
    home: Path | None,
    as_json: bool,
) -> int:
    """Find runs of studies that are RUNNING although their process has died, and end them as KILLED.

    What they have stays. Of a study of this machine it is known whether a process runs it; another one gives a sign of life
    every minute, as long as it reaches the server. Without --yes nothing is changed. A study that was only cut off goes
    on, and says so on the server when it is back.
    """
    from mlflow_ngraph.tracking import connection
    from mlflow_ngraph.tracking.dead_runs import RunningRuns

    silent_s = quantity("--silent-for", silent_for, SECONDS)
    studies = home_directory.location(home) / "studies"
    with waiting("reading which runs there are"):
        runs = RunningRuns(connection.resolve_uri(tracking_uri), silent_s, lambda name: _is_gone(studies, name))
        found = runs.find(items(experiment) or None)
        ended = {run.run_id for run in found if yes and run.state == "dead" and runs.end(run)}
    if as_json:
        output.print_json({"ended": yes, "runs": [{**asdict(run), "ended": run.run_id in ended} for run in found]})
        return 0
    rows = [
        (
            run.run_id,
            run.kind,
            run.study_id,
            run.host,
            None if run.silent_s is None else output.age(run.silent_s),
            f"{'ended' if run.run_id in ended else run.state}: {run.why}",
        )
        for run in found
    ]
    columns: list[Head] = ["run", "kind", "study", Column("host", spare=1), number("silent for"), prose("state")]
    dead = sum(run.state == "dead" for run in found)
    tally = f"{counted(len(found), 'run is', 'runs are')} RUNNING; {dead} of them dead, {len(ended)} ended"
    notes = [tally, *(["nothing was changed: add --yes"] if dead and not yes else [])]
    tables.show(output.console(), Sheet("", columns, rows, notes))
    return 0


def _is_gone(studies: Path, study_id: str) -> bool | None:
    """True if no process works on a study of this machine; None where it is not one."""
    from mlflow_ngraph.execute import journal

    directory = studies / study_id
    if not study_id or Path(study_id).name != study_id or not (directory / journal.FILE_NAME).is_file():
        return None
    try:
        with journal.held(directory):
            return True
    except (JournalError, OSError):
        return False
