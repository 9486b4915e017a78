"""Narrow found study runs to the experiments of named runs, or to the experiment that was recorded to last."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses, home
from mlflow_ngraph.errors import TrackingError, UsageError, few
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import FoundRuns, ListedRun


def of_runs(found: FoundRuns, named: Sequence[str]) -> FoundRuns:
    """Keep the experiments of study runs and lane runs, by their ids."""
    kept: dict[str, list[ListedRun]] = {}
    for server in found.servers:
        names = set()
        for run_id in named:
            with suppress(TrackingError):  # it may be of another server
                names.add(server.study_run(run_id).experiment)
        kept[server.uri] = [run for run in found.runs[server.uri] if run.experiment in names]
        if names and len(kept[server.uri]) < len(found.runs[server.uri]):
            found.notes.append(
                f"looked at {' and '.join(f'experiment {name!r}' for name in sorted(names))}, of the runs named"
            )
    return replace(found, runs=kept)


def recorded_to_last(found: FoundRuns, *, guess: bool = True) -> FoundRuns:
    """Keep one experiment of each server: the one to which the newest study of this machine was recorded, else the one
    with the newest study of anybody.

    ``guess``: choose also among experiments of which none has a study of this machine; else that raises `UsageError`.
    """
    own: list[str] = []
    kept = dict(found.runs)
    for uri, runs in found.runs.items():
        names = sorted({run.experiment for run in runs})
        if len(names) < 2:
            continue
        own = own or list(study_directories.recorded(home.location()))
        mine = [run for run_id in own for run in runs if run.run_id == run_id]
        if not mine and not guess:
            raise UsageError(
                f"{addresses.shown(uri)} has results in {len(names)} experiments, none of which was recorded from here: "
                f"name one with --experiment, or take in all with --all-experiments: {few(names)}"
            )
        chosen = mine[0] if mine else max(runs, key=lambda run: run.started_ms)
        kept[uri] = [run for run in runs if run.experiment == chosen.experiment]
        why = "recorded to last from here" if mine else "recorded to last"
        more = counted(len(names) - 1, "other")
        found.notes.append(f"looked at experiment {chosen.experiment!r}, {why}; --all-experiments takes in {more}")
    return replace(found, runs=kept)
