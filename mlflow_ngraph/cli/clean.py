"""``mlflow-ngraph local clean``: remove studies, logs and engines that are no longer needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.lists import SECONDS, quantity
from mlflow_ngraph.errors import JournalError, UnknownNameError, UsageError
from mlflow_ngraph.execute.disk_inventory import Holding, What
from mlflow_ngraph.tables.sheet import Head, Sheet, number, prose
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

WHAT = get_args(What)


@click.command()
@click.argument("what", nargs=-1, type=click.Choice(WHAT), metavar="[studies|logs|scratch|cache|pulled]...")
@click.option("--study", "named", multiple=True, metavar="NAME", help="This study, recorded or not; may be repeated.")
@click.option("--older-than", metavar="AGE", help="Only what nobody has used for this long: 12h, 30d, 8w.")
@click.option("--yes", is_flag=True, help="Remove it; without it, it is only listed.")
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def clean(
    what: tuple[What, ...],
    named: tuple[str, ...],
    older_than: str | None,
    yes: bool,
    home: Path | None,
    as_json: bool,
) -> int:
    """Show what this machine keeps of studies and engines, or remove some.

    'studies' are those that a tracking server has: one that is not recorded, or did not come to its end, goes only if
    --study names it. 'logs' is what their processes printed, 'scratch' what a killed study makes again, 'cache' the
    engines that studies share, 'pulled' those of 'mlflow-ngraph engine pull'. Without --yes nothing is removed.
    """
    from mlflow_ngraph.execute import disk_inventory

    if yes and not what and not named:
        raise UsageError(f"--yes needs to know what goes: {', '.join(WHAT)}, or --study NAME")
    if named and what and "studies" in what:
        raise UsageError("--study names the studies that go: leave out 'studies'")
    age = quantity("--older-than", older_than, SECONDS) if older_than else 0.0
    place = home_directory.location(home)
    kept = disk_inventory.holdings(place)
    chosen = [
        holding
        for holding in kept
        if holding.age_s >= age and (holding.what in what or not (what or named)) and not (yes and holding.stays)
    ]
    chosen += _named(kept, named)
    freed = disk_inventory.freed_bytes(holding for holding in chosen if not holding.stays or holding.name in named)
    problems = _removed(chosen) if yes else {}
    freed -= disk_inventory.freed_bytes(holding for holding in chosen if (holding.what, holding.name) in problems)
    if as_json:
        output.print_json(
            {
                "directory": str(place),
                "removed": yes,
                "freed_bytes": freed,
                "items": [_document(holding, named, problems) for holding in chosen],
            }
        )
    else:
        _show(chosen, named, problems, place, freed, yes=yes)
    return 1 if problems else 0


def _named(kept: Iterable[Holding], names: Sequence[str]) -> list[Holding]:
    studies = {holding.name: holding for holding in kept if holding.what == "studies"}
    for name in names:
        if name not in studies:
            raise UnknownNameError("study", name, studies)
    return [studies[name] for name in dict.fromkeys(names)]


def _removed(chosen: Iterable[Holding]) -> dict[tuple[str, str], str]:
    """Remove them one by one; returns the failures with their reasons."""
    from mlflow_ngraph.execute import disk_inventory

    problems: dict[tuple[str, str], str] = {}
    for holding in chosen:
        try:
            disk_inventory.remove(holding)
        except (JournalError, OSError) as error:
            told = isinstance(error, OSError) and error.strerror
            problems[holding.what, holding.name] = told or str(error)
    return problems


def _state(holding: Holding, named: Sequence[str], problems: Mapping[tuple[str, str], str]) -> str:
    """Reason why something stays; empty if it goes."""
    stays = "" if holding.name in named else holding.stays
    return problems.get((holding.what, holding.name), stays)


def _document(holding: Holding, named: Sequence[str], problems: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "what": holding.what,
        "name": holding.name,
        "paths": [str(path) for path in holding.paths],
        "size_bytes": holding.size_bytes,
        "age_s": holding.age_s,
        "stays": _state(holding, named, problems),
    }


def _show(
    chosen: Sequence[Holding],
    named: Sequence[str],
    problems: Mapping[tuple[str, str], str],
    place: Path,
    freed: int,
    *,
    yes: bool,
) -> None:
    stay = [holding for holding in chosen if _state(holding, named, problems)]
    done = "removed" if yes else "may go"
    rows = [
        (
            holding.what,
            holding.name,
            f"{holding.size_bytes / 1e6:.1f}",
            output.age(holding.age_s),
            f"no: {why}" if (why := _state(holding, named, problems)) else "yes",
        )
        for holding in chosen
    ]
    count = counted(len(chosen) - len(stay), "thing", "things")
    notes = [f"{count} {done}, which frees {freed / 1e6:.1f} MB ({place})"]
    lost = [holding for holding in stay if holding.stays]
    if lost and not yes:
        notes.append(
            f"{counted(len(lost), 'study stays', 'studies stay')}: 'mlflow-ngraph study sync NAME' records one, and --study NAME lets it go "
            "nevertheless"
        )
    if chosen and not yes:
        notes.append("nothing was removed: say what, and add --yes")
    columns: list[Head] = ["what", "name", number("MB"), number("unused for"), prose(done)]
    tables.show(output.console(), Sheet("", columns, rows, notes))
