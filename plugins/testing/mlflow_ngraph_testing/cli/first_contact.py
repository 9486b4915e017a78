"""``mlflow-ngraph local first-contact``: self-test for a new machine, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from mlflow_ngraph.cli import output


@click.command("first-contact")
@click.option(
    "--device", metavar="NAME", help="Device profile; by default the most particular one that this machine is."
)
@click.option(
    "--short/--full",
    "short",
    default=True,
    help="Within ten minutes, with as much as fits (the default), or everything, in hours.",
)
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the report and all else; by default first-contact-DEVICE.",
)
@click.option("--resume", is_flag=True, help="Go on with the report in the folder: try again what is not right in it.")
@output.json_option
def first_contact(device: str | None, short: bool, folder: Path | None, resume: bool, as_json: bool) -> int:
    """Try everything once on a machine whose device profile has never run, and write a report for its authors.

    What is there and what lacks, sensors at rest and under load, the study smoke, the machine's lock, a study that is
    killed and resumed, the runtimes' own tools, the contract suite of every compiler, and the paper's models. Each part has
    a time limit. Nothing is downloaded, and no tracking server is asked.

    Exit code 0 if all that could be tried was right, 3 if something was not.
    """
    from mlflow_ngraph.devices.registry import create
    from mlflow_ngraph.errors import UsageError
    from mlflow_ngraph_testing.first_contact import course
    from mlflow_ngraph_testing.first_contact.report import JSON_NAME, MARKDOWN_NAME

    form: Literal["short", "full"] = "short" if short else "full"
    profile = create(device or course.fitting())
    place = (folder or Path(f"first-contact-{profile.name}")).expanduser().absolute()
    report = course.begin(profile.name, form, place, resume=resume)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {place}: {error.strerror or error}") from error
    messages = output.console(stderr=True)
    course.follow(report, profile, place, lambda line: messages.print(line, markup=False, soft_wrap=True))
    click.echo((place / JSON_NAME).read_text(encoding="utf-8") if as_json else str(place / MARKDOWN_NAME))
    return report.exit_code
