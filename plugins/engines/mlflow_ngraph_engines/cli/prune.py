"""``mlflow-ngraph engine prune``: list superseded engines of a tracking server by rules; ``--yes`` deletes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, filter_options
from mlflow_ngraph.cli.lists import SECONDS, quantity
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import TrackingError, UsageError
from mlflow_ngraph.tables.sheet import Head, Sheet, number, prose

if TYPE_CHECKING:
    from mlflow_ngraph_engines.inventory import ListedEngine


@click.command(cls=FilteredCommand)
@filter_options
@click.option("--keep-best", type=click.IntRange(0), metavar="N", help="Keep the N best of a group.")
@click.option("--keep-newest", type=click.IntRange(0), metavar="N", help="Keep the N newest of a group.")
@click.option("--older-than", metavar="AGE", help="Remove only what is older than this: 12h, 30d, 8w.")
@click.option("--metric", metavar="NAME", default="throughput", show_default=True, help="What is best.")
@click.option(
    "--include", type=click.Choice(["registered", "aliased"]), multiple=True,
    help="Also remove engines with a registered version, or even with an alias; their versions go with them.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing. So it is without --yes, too.")
@click.option("--yes", is_flag=True, help="Remove them; without it they are only listed.")
@output.json_option
def prune(
    keep_best: int | None,
    keep_newest: int | None,
    older_than: str | None,
    metric: str,
    include: Sequence[str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Remove old engines from the tracking server, with their files; runs and results stay.

    A group is the engines of one workload, device and batch size, among those that the filters let through. An engine
    stays if a rule keeps it in one of its groups. Engines with an alias or a registered version stay unless --include
    says otherwise. Without --yes nothing is removed. What was interrupted is finished the next time.
    """
    from mlflow_ngraph_engines import inventory, pruning
    from mlflow_ngraph_engines.champion import check_metric

    if keep_best is None and keep_newest is None and older_than is None:
        raise UsageError("prune needs a rule: --keep-best N, --keep-newest N or --older-than AGE")
    if dry_run and yes:
        raise UsageError("--dry-run and --yes contradict each other: leave one out")
    rules = pruning.Rules(
        keep_best=keep_best,
        keep_newest=keep_newest,
        older_than_s=quantity("--older-than", older_than, SECONDS) if older_than else None,
        metric=check_metric(metric),
        registered="registered" in include,
        aliased="aliased" in include,
    )
    asked = Asked(given)
    with waiting("reading which engines there are"):
        engines = inventory.read(asked.uris, asked.experiments(), asked.selection(), metric=metric, cache=asked.cache)
    going = rules.superfluous(engines) if engines else []
    sizes = pruning.sizes(going)
    problems = _removed(going) if yes else {}
    if as_json:
        output.print_json(
            {"removed": yes, "kept": len(engines) - len(going), "engines": _documents(going, sizes, problems)}
        )
    else:
        _show(engines, going, sizes, problems, yes)
    return 1 if problems else 0


def _removed(going: Sequence[ListedEngine]) -> dict[str, str]:
    """Remove them one after the other; what could not be removed, and why, by model id."""
    from mlflow_ngraph_engines import pruning

    problems = {}
    for engine in going:
        try:
            pruning.remove(engine)
        except TrackingError as error:
            problems[engine.model_id] = str(error)
    return problems


def _documents(
    going: Sequence[ListedEngine], sizes: Mapping[str, int], problems: Mapping[str, str]
) -> list[dict[str, Any]]:
    from mlflow_ngraph_engines.cli.list import document

    return [
        {
            **{name: value for name, value in document(engine, None).items() if name not in ("fits", "misfit")},
            "bytes": sizes[engine.model_id],
            "interrupted": engine.interrupted,
            "problem": problems.get(engine.model_id, ""),
        }
        for engine in going
    ]


def _show(
    engines: Sequence[ListedEngine],
    going: Sequence[ListedEngine],
    sizes: Mapping[str, int],
    problems: Mapping[str, str],
    yes: bool,
) -> None:
    done = [engine for engine in going if engine.model_id not in problems]
    total = sum(sizes[engine.model_id] for engine in done) / 1e6
    what = "removed" if yes else "would be removed"
    columns: list[Head] = [
        "engine",
        "workload",
        "device",
        "compiler",
        "precision",
        "batch",
        number("MB"),
        number("age", spare=1),
    ]
    tally = f"{len(done)} engines {what}, {total:.1f} MB; {len(engines) - len(done)} stay"
    sheet = Sheet(
        "",
        [*columns, "called", prose(what)],
        [_cells(engine, sizes, problems, yes) for engine in going],
        [tally, *(["nothing was removed: add --yes"] if going and not yes else [])],
    )
    tables.show(output.console(), sheet)


def _cells(engine: ListedEngine, sizes: Mapping[str, int], problems: Mapping[str, str], yes: bool) -> tuple[Any, ...]:
    state = problems.get(engine.model_id) or ("yes, interrupted before" if engine.interrupted and not yes else "yes")
    return (
        *engine.named,
        f"{sizes[engine.model_id] / 1e6:.1f}",
        output.age(engine.age_s),
        " ".join(engine.aliases or engine.versions),
        state,
    )
