"""Resolve a model URI or a run ID to one engine on a server; `EngineFilter` chooses among a run's engines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import TrackingError, UsageError
from mlflow_ngraph.tracking import connection, download
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.schema import Kind, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

_RUN = re.compile(r"(?:runs:/)?(?P<id>[0-9a-f]{32})/?$")
_SHOWN = 6
"""Engines that a message names."""


@dataclass(frozen=True)
class EngineFilter:
    """Filter of a run's engines; an engine has to pass all of it, and empty fields let all through."""

    workloads: Sequence[str] = ()
    """Full or short names."""
    compilers: Sequence[str] = ()
    """Names, with or without the flags that were given."""
    precisions: Sequence[str] = ()
    """Precisions that were asked for."""
    batch_sizes: Sequence[int] = ()
    """Batch sizes, all of which the engine must have."""

    def fits(self, model: LoggedModel) -> bool:
        """Test if the engine of a LoggedModel passes."""
        tags = model.tags
        named = (
            (self.workloads, (Tag.WORKLOAD, Tag.LABEL)),
            (self.compilers, (Tag.COMPILER, Tag.COMPILER_LABEL)),
            (self.precisions, (Tag.PRECISION,)),
        )
        return set(self.batch_sizes) <= set(_batches(model)) and all(
            not names or any(tags.get(tag) in names for tag in where) for names, where in named
        )

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        """Options for messages."""
        named = [(f"--{field.name.replace('_', '-')}", getattr(self, field.name)) for field in fields(self)]
        return " ".join(f"{name} {','.join(map(str, values))}" for name, values in named if values).replace(
            "--precisions", "--precision"
        )


def find(source: str, tracking_uri: str, wanted: EngineFilter) -> Remote:
    """The engine that a person means.

    ``source`` is ``models:/name@alias``, ``models:/name/1``, ``models:/m-...``, or the id of a study or lane run, with
    or without ``runs:/``. Raises `TrackingError` if the server cannot be reached or knows nothing of this name, and
    `UsageError` if the run has no such engine, or several.
    """
    run = _RUN.match(source)
    if run is not None:
        return _of_run(run["id"], tracking_uri, wanted)
    if wanted:
        raise UsageError(f"{source} is one engine: {wanted} chooses among those of a run")
    return download.locate(source, tracking_uri)


def _of_run(run_id: str, tracking_uri: str, wanted: EngineFilter) -> Remote:
    client = connection.reach(tracking_uri)
    with connection.talking(tracking_uri, f"find the engines of run {run_id}", connection.RECORDING):
        run = connection.kept_run(client, run_id)
        models = _engines(client, run)
    fitting = [model for model in models if wanted.fits(model)]
    if len(fitting) == 1:
        return download.of_model(fitting[0], tracking_uri)
    if not models:
        raise UsageError(f"run {run_id} has no engine whose files are complete")
    if not fitting:
        raise UsageError(f"run {run_id} has no engine that fits {wanted}: it has {_named(models)}")
    hint = "choose with --workloads, --compilers, --precision or --batch-sizes, or give one of these models"
    raise UsageError(f"run {run_id} has {len(fitting)} engines: {_named(fitting)}; {hint}")


def _engines(client: MlflowClient, run: Run) -> list[LoggedModel]:
    """Engines of a run with complete files, and with lane runs that are not deleted."""
    tags = run.data.tags
    kind, study, lane = tags.get(Tag.KIND), tags.get(Tag.STUDY_ID), tags.get(Tag.LANE_ID)
    if kind not in (Kind.STUDY, Kind.LANE) or not study:
        raise TrackingError(f"run {run.info.run_id} is no run of a study or a lane: it has no engines")
    query = f"tags.`{Tag.STUDY_ID}` = '{study}'" + (f" AND tags.`{Tag.LANE_ID}` = '{lane}'" if lane else "")
    models: list[LoggedModel] = connection.every(
        lambda token: client.search_logged_models([run.info.experiment_id], query, page_token=token)
    )
    lanes = {model.source_run_id for model in models if model.source_run_id}
    deleted = {run_id for run_id in lanes if connection.is_deleted(client, run_id)}
    return [model for model in models if str(model.status) == "READY" and model.source_run_id not in deleted]


def _batches(model: LoggedModel) -> list[int]:
    return [int(text) for text in model.tags.get(Tag.BATCH_SIZES, "").split(",") if text.isdigit()]


def _named(models: Sequence[LoggedModel]) -> str:
    names = [
        f"models:/{model.model_id} ({model.tags.get(Tag.LABEL)} by "
        f"{model.tags.get(Tag.COMPILER_LABEL) or model.tags.get(Tag.COMPILER)}, {model.tags.get(Tag.PRECISION)}, "
        f"batch {', '.join(map(str, _batches(model)))})"
        for model in models
    ]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
