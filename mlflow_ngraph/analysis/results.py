"""The tidy table: one row a cell, from the record of a study or read back from a tracking server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from mlflow_ngraph.errors import TrackingError, UnknownNameError
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import CELL_METRICS, Artifact, Kind, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

TEXT_COLUMNS = (
    "study_id",
    "study",
    "device",
    "fingerprint",
    "workload",
    "label",
    "family",
    "compiler",
    "compiler_label",
    "flags",
    "precision",
    "precision_in_force",
    "mode",
    "verdict",
    "reason",
    "engine",
    "engine_reused",
    "lane",
    "cell",
    "run_id",
    "lane_run_id",
    "model_id",
)
"""``flags`` is JSON: every flag with the value in force. ``engine_reused`` is the study that compiled the engine, where
it was another one. What does not apply is missing (NaN)."""
INTEGER_COLUMNS = ("threads", "batch", "parameters", "paper_macs", "true_macs")
TIME_COLUMNS = ("started_at", "finished_at")
"""Unix seconds: the start of the study, the end of the cell."""
COLUMNS = (*TEXT_COLUMNS, *INTEGER_COLUMNS, *TIME_COLUMNS, *CELL_METRICS)
"""Columns that a table always has; metrics that are not in the schema follow them."""
_DOWNLOADS = 8


def from_record(
    record: StudyRecord,
    run_id: str | None = None,
    lane_runs: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """The table of a study: a row for each cell that has a verdict.

    Parameters
    ----------
    run_id: the study run.
    lane_runs: the lane runs by lane.
    models: the LoggedModels by engine.
    """
    rows = [
        {
            **_row(record, lane, cell),
            "run_id": run_id,
            "lane_run_id": (lane_runs or {}).get(lane.lane.id),
            "model_id": (models or {}).get(cell.engine or ""),
        }
        for lane in record.lanes.values()
        for _, cell in sorted(lane.cells.items())
    ]
    return _typed(pd.DataFrame(rows))


def load(
    tracking_uri: str | None = None,
    experiments: Sequence[str] | None = None,
    *,
    devices: Sequence[str] | None = None,
    studies: Sequence[str] | None = None,
    run: str | None = None,
) -> pd.DataFrame:
    """Read the results of all studies from a tracking server.

    A study run that another one took over is left out: the other has its cells.

    Parameters
    ----------
    tracking_uri: where to read; MLflow's own default when left out.
    experiments: names of experiments; all of them when left out.
    devices, studies: keep the cells of these devices, and of studies with these names.
    run: the id of a study run, or of one of its lane runs, to read alone.

    Raises
    ------
    UnknownNameError: an experiment does not exist.
    TrackingError: the server cannot be reached, or a table cannot be read.
    """
    uri = connection.resolve_uri(tracking_uri)
    client = connection.reach(uri)
    with connection.talking(uri, "read results", connection.RECORDING):
        runs = [study_run(client, run)] if run else _study_runs(client, _experiment_ids(client, experiments))
    runs = [
        run
        for run in runs
        if (not devices or run.data.tags.get(Tag.DEVICE) in devices)
        and (not studies or run.data.tags.get(Tag.STUDY) in studies)
    ]
    with (
        connection.talking(uri, "read results", connection.RECORDING),
        tempfile.TemporaryDirectory() as directory,
        ThreadPoolExecutor(_DOWNLOADS) as pool,
    ):
        frames = list(pool.map(lambda run: _download(client, run, Path(directory)), runs))
    filled = [frame for frame in frames if len(frame)]
    return _typed(pd.concat(filled, ignore_index=True) if filled else pd.DataFrame())


def _row(record: StudyRecord, lane: LaneRecord, cell: CellRecord) -> dict[str, Any]:
    info = record.workloads.get(lane.lane.workload, {}).get("info", {})
    engine = next((engine for engine in lane.engines if engine.id == cell.engine), None)
    flags = {**lane.lane.flags, **(engine.flags if engine else {}), **cell.flags}
    return {
        "study_id": record.id,
        "study": record.name,
        "device": lane.lane.device,
        "fingerprint": record.fingerprint.get("digest"),
        "workload": lane.lane.workload,
        "label": lane.lane.label,
        "family": lane.lane.family,
        "compiler": lane.lane.compiler,
        "compiler_label": lane.lane.compiler_label,
        "flags": json.dumps(flags, sort_keys=True),
        "precision": lane.lane.precision,
        "precision_in_force": cell.precision_in_force,
        "mode": lane.lane.mode,
        "threads": lane.lane.threads,
        "batch": cell.batch,
        "verdict": str(cell.verdict),
        "reason": cell.reason,
        "engine": cell.engine,
        "engine_reused": engine.reused["study_id"] if engine is not None and engine.reused is not None else None,
        "lane": lane.lane.id,
        "cell": cell.id,
        "started_at": record.started_at,
        "finished_at": cell.finished_at,
        **{name: info.get(name) for name in ("parameters", "paper_macs", "true_macs")},
        **cell.metrics,
    }


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Every documented column, in its order and with its type, whatever the rows had."""
    others = [name for name in frame.columns if name not in COLUMNS]
    frame = frame.reindex(columns=[*COLUMNS, *others])
    types: dict[str, str] = dict.fromkeys(TEXT_COLUMNS, "string")
    types.update(dict.fromkeys(INTEGER_COLUMNS, "Int64"))
    types.update(dict.fromkeys([*TIME_COLUMNS, *CELL_METRICS], "float64"))
    typed: pd.DataFrame = frame.astype(types)
    return typed


def _experiment_ids(client: MlflowClient, names: Sequence[str] | None) -> list[str]:
    found: list[Experiment] = connection.every(lambda token: client.search_experiments(page_token=token))
    known = {experiment.name: experiment.experiment_id for experiment in found}
    for name in names or ():
        if name not in known:
            raise UnknownNameError("experiment", name, known)
    return [known[name] for name in names or known]


def _study_runs(client: MlflowClient, experiment_ids: list[str]) -> list[Run]:
    query = f"tags.`{Tag.KIND}` = '{Kind.STUDY}'"
    runs: list[Run] = connection.every(lambda token: client.search_runs(experiment_ids, query, page_token=token))
    return [run for run in runs if Tag.RESUMED_BY not in run.data.tags]


def study_run(client: MlflowClient, run_id: str) -> Run:
    """The study run of this id, or the one that this run is a lane of."""
    run = client.get_run(run_id)
    parent = run.data.tags.get(Tag.PARENT) if run.data.tags.get(Tag.KIND) == Kind.LANE else None
    return client.get_run(parent) if parent else run


def _download(client: MlflowClient, run: Run, directory: Path) -> pd.DataFrame:
    """The table of a study run; empty when the study has not got as far as writing one."""
    run_id = run.info.run_id
    table: pd.DataFrame = pd.DataFrame()
    if Artifact.RESULTS not in {file.path for file in client.list_artifacts(run_id)}:
        return table
    target = directory / run_id
    target.mkdir()
    path = client.download_artifacts(run_id, Artifact.RESULTS, str(target))
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        why = f"{Artifact.RESULTS} is not readable ({error}); sync the study again"
        raise TrackingError(f"run {run_id}: {why}") from error
    return table
