"""Experiments that a verb looks at where none was named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses, home
from mlflow_ngraph.errors import UsageError, few
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import FoundRuns


def recorded_to_last(found: FoundRuns, *, guess: bool = True) -> FoundRuns:
    """Keep one experiment of each server: the one to which the newest study of this machine was recorded, else the one
    with the newest study of anybody.

    Parameters
    ----------
    guess : bool
        Choose also among experiments of which none has a study of this machine.

    Raises
    ------
    UsageError
        The choice would be a guess.
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
