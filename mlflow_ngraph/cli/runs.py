"""``mlflow-ngraph study runs``: studies that were run on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.tables.sheet import Head, Sheet, number
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.execute.study_directories import Begun


@click.command()
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def runs(home: Path | None, as_json: bool) -> int:
    """List the studies of this machine, the newest first, each with its id, its cells and whether it is recorded.

    Other verbs take the id, or the name for the latest study of it, with ~1 behind it for the one before.
    """
    from mlflow_ngraph.execute import study_directories

    rows = [_row(study) for study in study_directories.begun(home_directory.location(home))]
    if as_json:
        output.print_json({"studies": rows})
        return 0
    columns: list[Head] = ["id", "study", "begun", "device", number("ok"), "state"]
    tables.show(output.console(), Sheet("", columns, list(map(_shown, rows))))
    return 0


def _row(study: Begun) -> dict[str, Any]:
    from mlflow_ngraph.execute import replay

    about = {"study_id": study.study_id, "study": study.name, "started_at": study.at, "device": study.device}
    nothing = {"ok": None, "cells": None, "run_id": None, "directory": str(study.directory)}
    try:
        lanes = replay.outline(study.directory).lanes.values()
        ok = sum(cell.verdict is Verdict.OK for lane in lanes for cell in lane.cells.values())
        cells = sum(len(lane.lane.batch_sizes) for lane in lanes)
        state, run_id = _state(study.directory)
    except JournalError:
        return {**about, **nothing, "state": "damaged"}
    return {**about, **nothing, "ok": ok, "cells": cells, "run_id": run_id or None, "state": state}


def _state(directory: Path) -> tuple[str, str]:
    """Progress of a study, and the run by which a tracking server has all of it."""
    from mlflow_ngraph.execute import journal, study_directories

    if (run_id := study_directories.recorded_as(directory)) and study_directories.end(directory) != "open":
        return "recorded", run_id
    try:
        with journal.held(directory):
            return ("unfinished" if study_directories.end(directory) == "open" else "to be recorded: sync"), run_id
    except JournalError:
        return "running", ""


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started_at"]))
    cells = "" if row["cells"] is None else f"{row['ok']}/{row['cells']}"
    return row["study_id"], row["study"], begun, row["device"], cells, row["state"]
