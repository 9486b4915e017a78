"""Print the plan of a study for ``--dry-run``: lanes, cells, time and space; notes, also before any run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import NO_GOOD_ANSWER, DependencyError, few
from mlflow_ngraph.tables.sheet import Column, Sheet, number, prose
from mlflow_ngraph.text import duration

if TYPE_CHECKING:
    from mlflow_ngraph.execute.plan import StudyPlan
    from mlflow_ngraph.execute.timing_history import Duration, Source
    from mlflow_ngraph.study import Study

_KNOWN_FROM: Mapping[Source, str] = {
    "measured": "measured here before",
    "similar": "like what was measured here",
    "assumed": "assumed",
}


def show(study: Study, home: Path | None, *, as_json: bool) -> int:
    """Print the plan of a study; returns the exit code, which is the study's where cells are known to fail."""
    from mlflow_ngraph.execute import expected_time, process_pool
    from mlflow_ngraph.execute.timing_history import FACTORS
    from mlflow_ngraph.runner import plan_study

    with waiting("looking at the models, in a process that imports torch", logged=True):
        plan = plan_study(study, home)
    failing = NO_GOOD_ANSWER if any(workload.refused for workload in plan.workloads) else 0
    expected = expected_time.of_study(plan)
    preparing_s = sum(expected_time.preparing(plan, workload).seconds for workload in plan.workloads)
    rows = _plan_rows(plan)
    if as_json:
        output.print_json(
            {
                "study": study.model_dump(mode="json"),
                "device": plan.device,
                "threads": plan.threads,
                "lanes": rows,
                "preparing_s": round(preparing_s, 1),
                "cells": plan.cells,
                "estimate_s": expected.seconds,
                "estimate_low_s": expected.low,
                "estimate_high_s": expected.high,
                "estimate_from": {source: expected.share(source) for source in FACTORS},
                "engine_bytes": plan.engine_bytes,
                "home_bytes": plan.home_bytes,
                "memory_bytes": process_pool.most_bytes(plan),
                "notes": notes(plan, home),
            }
        )
        return failing
    console = output.console()
    lanes = Sheet(
        "",
        [
            prose("workload"),
            Column("family", spare=1),
            prose("compiler"),
            "precision",
            prose("batch sizes"),
            number("about"),
        ],
        [
            (
                row["label"],
                row["family"],
                row["compiler_label"],
                row["precision"],
                " ".join(map(str, row["batch_sizes"])),
                duration(row["estimate_s"]),
            )
            for row in rows
        ],
    )
    tables.show(console, lanes)
    console.print(
        f"\nstudy {study.name} on device {plan.device}: {plan.cells} cells in {len(rows)} lanes, "
        f"{plan.threads or 'default'} threads, about {_range(expected)}, of which {duration(preparing_s)} prepare the models, "
        f"engines of about {plan.engine_bytes / 1e9:.1f} GB"
    )
    console.print(
        f"needs about {plan.home_bytes / 1e9:.1f} GB in {home_directory.location(home)}, {plan.engine_bytes / 1e9:.1f} GB where "
        f"MLflow keeps artifacts, and up to {process_pool.most_bytes(plan) / 1e9:.1f} GB of memory{_assumed_sizes(plan)}",
        soft_wrap=True,
    )
    for note in notes(plan, home):
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    return failing


def _range(expected: Duration) -> str:
    """A duration with its ends, and where it is known from."""
    known = ", ".join(
        f"{100 * expected.share(source):.0f} % {words}"
        for source, words in _KNOWN_FROM.items()
        if expected.share(source) >= 0.01
    )
    return f"{duration(expected.seconds)} ({duration(expected.low)} to {duration(expected.high)}; {known})"


def _assumed_sizes(plan: StudyPlan) -> str:
    """Name models whose size is unknown until they are built; empty without such."""
    from mlflow_ngraph.execute.plan import TYPICAL_PARAMETERS

    unknown = [work.label for work in plan.workloads if work.parameters is None and not work.refused]
    size = f"{TYPICAL_PARAMETERS / 1e6:.0f} million parameters"
    return f"; assumed for {few(unknown)}: {size}" if unknown else ""


def notes(plan: StudyPlan, home: Path | None) -> list[str]:
    """Notes before a study starts."""
    from mlflow_ngraph.devices import memory
    from mlflow_ngraph.execute import process_pool, time_allocation
    from mlflow_ngraph.processes import disk_space

    within = plan.study.within
    planned = [] if within is None else list(time_allocation.describe(plan, time_allocation.left_out(plan, within)))
    place = home_directory.location(home)
    free, wanted, available = disk_space.free_bytes(place), process_pool.most_bytes(plan), memory.available_bytes()
    lacking = []
    if free < plan.home_bytes:
        lacking.append(
            f"the study takes about {plan.home_bytes / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in {place}: a full disk "
            "ends a study, which --resume continues; choose another place with --home"
        )
    if available < wanted:
        lacking.append(
            f"compiling may take up to {wanted / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available: cells that run out "
            "of it are oom; free some memory"
        )
    return [*plan.notes, *_of_fixed_batches(plan), *planned, *lacking, *_of_the_paper(plan)]


def _of_fixed_batches(plan: StudyPlan) -> Iterator[str]:
    """Notes on models that accept one batch size only, where others are asked for."""
    for workload in plan.workloads:
        others = [size for size in plan.study.batch_sizes if size != workload.fixed_batch]
        if workload.fixed_batch is not None and others and not workload.refused:
            only = workload.batch_question or f"it accepts batch size {workload.fixed_batch} only"
            sizes = ", ".join(map(str, others))
            yield f"{workload.label} will be unsupported at batch {sizes}: {only}; --batch-sizes {workload.fixed_batch} measures it"


def _of_the_paper(plan: StudyPlan) -> Iterator[str]:
    """Notes on a study that repeats the paper's, by the plugin that compares the two, where it is installed."""
    from mlflow_ngraph.entry_points import load_plugin

    if plan.study.name.startswith("paper-") and not plan.study.build_for:
        from mlflow_ngraph.devices.fingerprint import fingerprint

        with suppress(DependencyError):
            told_before = load_plugin("mlflow-ngraph-report", "mlflow_ngraph.study", "paper", "report --paper")
            yield from filter(None, [told_before(plan.study.name, plan.device, fingerprint())])


def _plan_rows(plan: StudyPlan) -> list[dict[str, Any]]:
    from mlflow_ngraph.execute import expected_time

    return [
        {
            "workload": lane.workload,
            "label": lane.label,
            "family": lane.family,
            "compiler": lane.compiler,
            "compiler_label": lane.compiler_label,
            "flags": dict(lane.flags),
            "precision": lane.precision,
            "batch_sizes": list(lane.batch_sizes),
            "estimate_s": round(expected_time.of_lane(plan, workload, lane).seconds, 1),
        }
        for workload in plan.workloads
        for lane in workload.lanes
    ]
