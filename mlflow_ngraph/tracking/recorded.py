"""Lanes and engines of a record on a server: each once, and whole.

MLflow's client repeats a request whose answer was lost, also one that makes something, and a proxy may answer what the
server never heard. So what the server lists at the end is compared with what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking import engine_log
from mlflow_ngraph.tracking.connection import unless_gone
from mlflow_ngraph.tracking.content import Content, lane_content
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.study_run import StudyRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of a run that is not written any more."""


def settle(
    client: MlflowClient, study: StudyRun, record: StudyRecord, written: Collection[str], *, again: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Remove what a repeated request made, and check that the lanes which were ``written`` are whole.

    Returns ids of lane runs by lane, and of LoggedModels by engine. Raises `TrackingError` if the server lacks
    something that it said it has.
    """
    lanes: dict[str, Run] = {}
    models: dict[str, LoggedModel] = {}
    surplus: list[Callable[[], object]] = [
        partial(client.delete_run, run.info.run_id)
        for run in sorted(study.lane_runs(client), key=lambda run: run.info.status not in ENDED)
        if lanes.setdefault(run.data.tags[Tag.LANE_ID], run) is not run
    ]
    if unlisted := sorted(set(written) - lanes.keys()):  # their engines are nobody's, as far as such an answer tells
        raise untrue(", ".join(f"lane {lane_id}" for lane_id in unlisted))
    for model in sorted(engine_log.search(client, study), key=lambda model: str(model.status) != "READY"):
        source = lanes.get(model.tags[Tag.LANE_ID])
        if source is None or source.info.run_id != model.source_run_id or model.tags[Tag.ENGINE_ID] in models:
            surplus.append(partial(client.delete_logged_model, model.model_id))
        else:
            models[model.tags[Tag.ENGINE_ID]] = model
    if surplus and not again:
        for remove in surplus:
            with unless_gone():
                remove()
        return settle(client, study, record, written, again=True)
    wrong = [
        f"lane {lane_id}" for lane_id in sorted(written) if not is_whole(lanes[lane_id], lane_content(record, lane_id))
    ]
    wrong += [
        f"engine {model.model_id}"
        for model in models.values()
        if not (engine_log.is_stored(model) and model.model_id in linked(lanes[model.tags[Tag.LANE_ID]]))
    ]
    listed = {model.model_id for model in models.values()}
    wrong += [
        f"engine {model_id}"
        for run in lanes.values()
        for model_id in sorted(linked(run) - listed)
        if not is_gone(client, model_id)
    ]
    if surplus or wrong:
        raise untrue(", ".join(wrong) or "none of the runs or engines that were removed")
    ids = {lane_id: run.info.run_id for lane_id, run in lanes.items()}
    return ids, {engine_id: model.model_id for engine_id, model in models.items()}


def is_gone(client: MlflowClient, model_id: str) -> bool:
    """Test if an engine was deleted."""
    there = False
    with unless_gone():
        client.get_logged_model(model_id)
        there = True
    return not there


def is_whole(run: Run, content: Content) -> bool:
    """Test if a run has ended with all of its content, by names."""
    names = {point.name for point in content.points}
    return run.info.status in ENDED and names <= set(run.data.metrics) and set(content.params) <= set(run.data.params)


def linked(run: Run) -> set[str]:
    """Ids of the models that are outputs of a run."""
    return {output.model_id for output in (run.outputs.model_outputs if run.outputs else ())}


def untrue(what: str) -> TrackingError:
    """The error that the server lacks what it said it has."""
    return TrackingError(f"the server said that it has {what}, and does not: record the study again")
