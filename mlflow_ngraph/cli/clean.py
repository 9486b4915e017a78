"""``mlflow-ngraph local clean``: list kept studies, logs and engines, or remove some with ``--yes``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.lists import SECONDS, quantity
from mlflow_ngraph.errors import JournalError, UsageError, require_known
from mlflow_ngraph.execute.disk_inventory import StoredItem, What
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
    kept = disk_inventory.stored_items(place)
    chosen = [
        item
        for item in kept
        if item.age_s >= age and (item.what in what or not (what or named)) and not (yes and item.stays)
    ]
    chosen += _named(kept, named)
    freed = disk_inventory.freed_bytes(item for item in chosen if not item.stays or item.name in named)
    problems = _removed(chosen) if yes else {}
    freed -= disk_inventory.freed_bytes(item for item in chosen if (item.what, item.name) in problems)
    if as_json:
        output.print_json(
            {
                "directory": str(place),
                "removed": yes,
                "freed_bytes": freed,
                "items": [_document(item, named, problems) for item in chosen],
            }
        )
    else:
        _show(chosen, named, problems, place, freed, yes=yes)
    return 1 if problems else 0


def _named(kept: Iterable[StoredItem], names: Sequence[str]) -> list[StoredItem]:
    studies = {item.name: item for item in kept if item.what == "studies"}
    require_known("study", names, studies)
    return [studies[name] for name in dict.fromkeys(names)]


def _removed(chosen: Iterable[StoredItem]) -> dict[tuple[str, str], str]:
    """Remove them one by one; returns the failures with their reasons."""
    from mlflow_ngraph.execute import disk_inventory

    problems: dict[tuple[str, str], str] = {}
    for item in chosen:
        try:
            disk_inventory.remove(item)
        except (JournalError, OSError) as error:
            told = isinstance(error, OSError) and error.strerror
            problems[item.what, item.name] = told or str(error)
    return problems


def _state(item: StoredItem, named: Sequence[str], problems: Mapping[tuple[str, str], str]) -> str:
    """Reason why something stays; empty if it goes."""
    stays = "" if item.name in named else item.stays
    return problems.get((item.what, item.name), stays)


def _document(item: StoredItem, named: Sequence[str], problems: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "what": item.what,
        "name": item.name,
        "paths": [str(path) for path in item.paths],
        "size_bytes": item.size_bytes,
        "age_s": item.age_s,
        "stays": _state(item, named, problems),
    }


def _show(
    chosen: Sequence[StoredItem],
    named: Sequence[str],
    problems: Mapping[tuple[str, str], str],
    place: Path,
    freed: int,
    *,
    yes: bool,
) -> None:
    stay = [item for item in chosen if _state(item, named, problems)]
    done = "removed" if yes else "may go"
    rows = [
        (
            item.what,
            item.name,
            f"{item.size_bytes / 1e6:.1f}",
            output.age(item.age_s),
            f"no: {why}" if (why := _state(item, named, problems)) else "yes",
        )
        for item in chosen
    ]
    count = counted(len(chosen) - len(stay), "thing", "things")
    notes = [f"{count} {done}, which frees {freed / 1e6:.1f} MB ({place})"]
    lost = [item for item in stay if item.stays]
    if lost and not yes:
        notes.append(
            f"{counted(len(lost), 'study stays', 'studies stay')}: 'mlflow-ngraph study sync NAME' records one, and --study NAME lets it go "
            "nevertheless"
        )
    if chosen and not yes:
        notes.append("nothing was removed: say what, and add --yes")
    columns: list[Head] = ["what", "name", number("MB"), number("unused for"), prose(done)]
    tables.show(output.console(), Sheet("", columns, rows, notes))
