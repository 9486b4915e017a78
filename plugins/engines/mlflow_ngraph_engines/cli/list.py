"""``mlflow-ngraph engine list``: engines on tracking servers, with figures, aliases, and fit for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, filter_options
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.tables.sheet import Column, Head, Sheet, number
from mlflow_ngraph.text import plain, rounded, unsteady_mark

if TYPE_CHECKING:
    from mlflow_ngraph_engines.inventory import ListedEngine


@click.command("list", cls=FilteredCommand)
@filter_options
@click.option("--fits", is_flag=True, help="Only engines that fit this machine.")
@click.option("--champions", is_flag=True, help="Only engines that an alias points at.")
@output.json_option
def list_engines(fits: bool, champions: bool, as_json: bool, **given: Any) -> int:
    """List the engines that are logged, with what they do, what they are called, and whether they fit this machine.

    An engine is listed if one of its cells fits the filters. Figures are those of the batch size with the highest
    throughput.
    """
    from mlflow_ngraph_engines import inventory

    asked = Asked(given)
    with waiting("reading which engines there are"):
        engines = inventory.read(asked.uris, asked.experiments(), asked.selection(), cache=asked.cache)
    engines = [engine for engine in engines if not engine.interrupted and (engine.aliases or not champions)]
    misfits = inventory.misfits(engines)
    if fits:
        engines = [engine for engine in engines if misfits[engine.model_id] == ""]
    engines.sort(key=_order)
    if as_json:
        output.print_json({"engines": [document(engine, misfits[engine.model_id]) for engine in engines]})
        return 0
    _show(engines, misfits)
    return 0


def document(engine: ListedEngine, misfit: str | None) -> dict[str, Any]:
    """An engine as JSON."""
    from mlflow_ngraph.addresses import shown

    best = engine.best
    return {
        "model_id": engine.model_id,
        "tracking_uri": shown(engine.tracking_uri),
        **{name: plain(best.get(name)) for name in ("workload", "label", "device", "compiler", "compiler_label")},
        **{name: plain(best.get(name)) for name in ("precision", "precision_in_force", "mode", "study", "study_id")},
        "batch_sizes": engine.batch_sizes,
        "verdict": engine.verdict,
        "batch": plain(best.get("batch")),
        **{name: plain(best.get(name)) for name in ("throughput", "throughput_ci_low", "throughput_ci_high")},
        "size_mb": plain(best.get("engine_size_mb")),
        "logged_at": float(engine.model.creation_timestamp) / 1e3,
        "age_s": engine.age_s,
        "aliases": engine.aliases,
        "versions": engine.versions,
        "signed_by": engine.signed_by,
        "fits": None if misfit is None else not misfit,
        "misfit": misfit or "",
    }


def _show(engines: Sequence[ListedEngine], misfits: dict[str, str | None]) -> None:
    fitting = sum(misfit == "" for misfit in misfits.values() if misfit is not None)
    tally = f"{len(engines)} engines, {fitting} of them fit this machine; models:/ENGINE names one"
    columns: list[Head] = [
        *("engine", "compiler", Column("precision", spare=3), Column("batch", spare=2), Column("verdict", spare=6)),
        *(number("samples/s"), number("size MB", spare=5), number("age", spare=4)),
        *(Column("called", spare=1), Column("signed", spare=7), Column("fits here", spare=8)),
    ]
    places = groupby(engines, lambda engine: tuple(engine.named[1:3]))
    sheets = [
        Sheet(f"{label} on {device}", columns, [_cells(engine, misfits[engine.model_id]) for engine in own])
        for (label, device), own in places
    ]
    tables.show(output.console(), *sheets, tally if engines else "no engines")


def _cells(engine: ListedEngine, misfit: str | None) -> tuple[Any, ...]:
    best = engine.best
    size = plain(best.get("engine_size_mb"))
    name, _, _, *chosen = engine.named
    return (
        name,
        *chosen,
        engine.verdict or "unknown",
        _throughput(best),
        "" if size is None else f"{size:.1f}",
        output.age(engine.age_s),
        " ".join(engine.aliases or engine.versions),
        "yes" if engine.signed_by else "",
        "unknown" if misfit is None else "yes" if not misfit else "no",
    )


def _throughput(best: dict[str, Any]) -> str:
    throughput = plain(best.get("throughput"))
    return (
        ""
        if throughput is None
        else f"{unsteady_mark(best.get('unsteady'), 'throughput')}{rounded(throughput)} (b{best['batch']})"
    )


def _order(engine: ListedEngine) -> tuple[str, str, float]:
    best = engine.best
    return str(best["label"]), str(best["device"]), -(plain(best.get("throughput")) or 0.0)
