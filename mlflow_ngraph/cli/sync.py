"""``mlflow-ngraph study sync``: list studies that are not recorded, or record them, once or repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output
from mlflow_ngraph.errors import JournalError, TrackingError, UnreachableError, UsageError
from mlflow_ngraph.text import counted
from mlflow_ngraph.validation import duration_s

Record = Callable[[Path], dict[str, Any]]
"""Records the study of a directory; returns its addresses."""

_EVERY_S = 60.0
_LONGEST_S = 900.0
"""Between two attempts to reach a server that is away."""


@click.command()
@click.argument("studies", metavar="[STUDY]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every study of the home that no tracking server has all of.")
@click.option(
    "--watch", is_flag=True, help="As --all, again and again, whenever the server is there; ends by a signal."
)
@click.option(
    "--every", metavar="TIME", default=f"{_EVERY_S:g}s", show_default=True, help="With --watch: how often it looks."
)
@click.option("--tracking-uri", metavar="URI", help="Where to record; by default what MLflow is configured to use.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment that holds the runs.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def sync(
    studies: tuple[str, ...],
    all_: bool,
    watch: bool,
    every: str,
    tracking_uri: str | None,
    experiment: str | None,
    home: Path | None,
    as_json: bool,
) -> int:
    """Record studies from their journals; what is recorded already is left as it is.

    STUDY is the name of a study, of which the latest is taken (NAME~1 the one before), its id, or its directory. Without
    any, what waits is listed. With --all, studies that a process runs are left to it.
    """
    if studies and (all_ or watch):
        raise UsageError("name studies, or give --all or --watch")
    if watch and as_json:
        raise UsageError("--watch has no end that a document could be printed at: leave out --json")
    place = home_directory.location(home)
    if home is not None and not (place / "studies").is_dir():
        raise UsageError(f"there are no studies in {place}: give the --home in which they were measured")
    if not (studies or all_ or watch):
        return _list(place, as_json=as_json)
    record = partial(recorded, tracking_uri=tracking_uri, experiment=experiment)
    if watch:
        try:
            _watch(place, record, _seconds(every))
        except KeyboardInterrupt:
            return 0
    rows, problems = _all(place, record) if all_ else ([record(_directory(place, name)) for name in studies], [])
    for problem in problems:
        output.tell(problem)
    if as_json:
        output.print_json({"recorded": rows, **({"problems": problems} if all_ else {})})
    else:
        _show(rows)
    return 1 if problems else 0


def _list(place: Path, *, as_json: bool) -> int:
    """List studies that no tracking server has completely, and how to record them."""
    from mlflow_ngraph.execute import study_directories

    waiting = [directory.name for directory in study_directories.unrecorded(place)]
    if as_json:
        output.print_json({"waiting": waiting})
        return 0
    for name in waiting:
        click.echo(name)
    click.echo("record them with: mlflow-ngraph study sync --all" if waiting else "everything here is recorded")
    return 0


def _directory(place: Path, name: str) -> Path:
    from mlflow_ngraph.execute import study_directories

    return study_directories.named(place, name)


def recorded(directory: Path, *, tracking_uri: str | None, experiment: str | None) -> dict[str, Any]:
    """Record the study of a directory; its id and addresses."""
    from mlflow_ngraph.recording.from_journal import sync_study

    wait = partial(output.say_who_records, directory)
    outcome = sync_study(
        directory, tracking_uri=tracking_uri, experiment=experiment, on_wait=wait, on_pause=output.say_pause
    )
    for note in outcome.notes:
        output.tell(note)
    return {"study_id": outcome.record.id, "directory": str(outcome.directory), "where": dict(outcome.where)}


def _all(place: Path, record: Record) -> tuple[list[dict[str, Any]], list[str]]:
    """Record the rest, and report failures: a bad study does not stop the others, an unreachable server does."""
    from mlflow_ngraph.execute import study_directories

    rows, problems = [], []
    waiting = study_directories.unrecorded(place)
    for number, directory in enumerate(waiting):
        try:
            rows.append(record(directory))
        except UnreachableError as error:
            left = counted(len(waiting) - number, "study waits", "studies wait")
            problems.append(f"{left} for the server: {error}")
            break
        except (JournalError, TrackingError) as error:
            problems.append(f"{directory.name}: {error}")
    return rows, problems


def _watch(place: Path, record: Record, every_s: float) -> NoReturn:
    """Record the rest whenever the server answers and nothing is measured here; report new problems only."""
    from mlflow_ngraph.execute import machine_lock

    told, pause_s = list[str](), every_s
    while True:
        if machine_lock.holder() is None:
            rows, problems = _all(place, record)
            _show(rows)
            for problem in problems:
                if problem not in told:
                    output.tell(problem)
            # Who does not answer is asked less and less often.
            pause_s = min(max(every_s, _LONGEST_S), 2 * pause_s) if problems else every_s
            told = problems
        time.sleep(pause_s)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    console = output.console()
    for row in rows:
        console.print(f"recorded {row['study_id']}", style="bold")
        for what, where in row["where"].items():
            console.print(f"  {what.replace('_', ' ')}: {where}", soft_wrap=True)


def _seconds(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise UsageError(f"--every: {error}") from None
