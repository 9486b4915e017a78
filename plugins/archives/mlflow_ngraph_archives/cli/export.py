"""``mlflow-ngraph study export``: write studies with their engines and samples into one archive, signed if asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, trust_options
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.text import counted


@click.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True)
@click.option(
    "-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The archive; STUDY_ID.tar here by default, where there is one study.",
)  # fmt: skip
@trust_options.sign_option
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def export(
    studies: tuple[str, ...], target: Path | None, sign: Path | None, force: bool, home: Path | None, as_json: bool
) -> int:
    """Write studies into one file for 'mlflow-ngraph study import'.

    STUDY is the name of a study, of which the latest is taken (NAME~1 the one before), its id, that of its run, or its
    directory. The file has its journal, engines,
    samples, results and what they were checked with, all with digests; 'tar xf' unpacks it.
    """
    from mlflow_ngraph.execute import study_directories
    from mlflow_ngraph_archives.export import export as write

    place = home_directory.location(home)
    directories = list(dict.fromkeys(study_directories.named(place, study) for study in studies))
    if target is None and len(directories) > 1:
        raise UsageError("several studies in one file: name it with -o FILE")
    exported = write(
        directories,
        target or Path(f"{directories[0].name}.tar"),
        key=trust_options.load(sign) if sign else None,
        replace=force,
        on_wait=output.say_who_records,
    )
    if as_json:
        output.print_json(
            {
                "archive": str(exported.path),
                "size_bytes": exported.size_bytes,
                "studies": [study.study_id for study in exported.studies],
                "lacking": dict(exported.lacking),
                "signed_by": exported.signed_by,
            }
        )
        return 0
    console = output.console()
    if exported.lacking:
        output.console(stderr=True).print(_left_out(exported.lacking), style="yellow", soft_wrap=True)
    signed = f", signed by {exported.signed_by}" if exported.signed_by else ""
    console.print(
        f"{exported.path}: {counted(len(exported.studies), 'study', 'studies')}, {exported.size_bytes / 1e6:.1f} MB{signed}",
        soft_wrap=True,
    )
    return 0


def _left_out(lacking: Mapping[str, str]) -> str:
    engine, why = next(iter(lacking.items()))
    if len(lacking) == 1:
        return f"note: engine {engine} is left out: {why}"
    return f"note: {len(lacking)} engines are left out (--json lists them); the first is {engine}: {why}"
