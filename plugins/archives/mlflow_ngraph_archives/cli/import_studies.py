"""``mlflow-ngraph study import``: check and unpack archives of studies, and record them on a tracking server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.sync import recorded
from mlflow_ngraph.cli.trust_options import trust_option


@click.command("import")
@click.argument("archives", metavar="FILE...", nargs=-1, required=True,
                type=click.Path(exists=True, dir_okay=False, path_type=Path))  # fmt: skip
@click.option("--tracking-uri", metavar="URI", help="Where to record; by default what MLflow is configured to use.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment that holds the runs.")
@click.option("--offline", is_flag=True, help="Record nothing now; 'mlflow-ngraph study sync' does it later.")
@trust_option
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def import_studies(
    archives: tuple[Path, ...],
    tracking_uri: str | None,
    experiment: str | None,
    offline: bool,
    trust: str | None,
    home: Path | None,
    as_json: bool,
) -> int:
    """Import studies from archives, and record them on a tracking server.

    All of a FILE is checked before anything is written. Importing again changes nothing.
    """
    from mlflow_ngraph.engines import trust as trusting
    from mlflow_ngraph.execute import study_directories
    from mlflow_ngraph_archives import importing

    rules = trusting.load(trust, home)
    checked = [importing.check(path, rules) for path in archives]
    studies = home_directory.directory(home) / "studies"
    arrived: list[dict[str, Any]] = [
        {
            "study_id": study.study.study_id,
            "archive": str(archive.path),
            "directory": str(study.directory),
            "state": study.state,
            "trust": archive.trusted.found,
            "finished": study_directories.end(study.directory) != "open",
            "where": {},
        }
        for archive in checked
        for study in importing.unpack(archive, studies, output.say_who_records)
    ]
    for row in () if offline else arrived:
        row["where"] = recorded(Path(row["directory"]), tracking_uri=tracking_uri, experiment=experiment)["where"]
    if as_json:
        output.print_json({"imported": arrived})
        return 0
    console = output.console()
    for row in arrived:
        console.print(f"{row['state']} {row['study_id']} ({row['trust']})", style="bold", soft_wrap=True)
        if not row["finished"]:
            console.print(
                "  it ends before the study does: its journal was cut, or the study interrupted", style="yellow"
            )
        for what, where in {"directory": row["directory"], **row["where"]}.items():
            console.print(f"  {what.replace('_', ' ')}: {where}", soft_wrap=True)
    return 0
