"""Check that the server lists each recorded lane and engine once and whole, and delete surplus runs and engines.

MLflow's client repeats a request whose answer was lost, also one that makes something, and a proxy may answer what the
server never heard. So what the server lists at the end is compared with what was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking import engine_log
from mlflow_ngraph.tracking.connection import every, unless_gone
from mlflow_ngraph.tracking.content import Content, lane_content
from mlflow_ngraph.tracking.model_registry import model_id_of
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.study_run import StudyRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion

ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of a run that is not written any more."""


@dataclass(frozen=True)
class RecordedLane:
    """Ids that a lane has on a server."""

    run_id: str
    models: Mapping[str, str]
    """LoggedModels by engine."""


def agrees(run: Run, content: Content) -> bool:
    """Test if nothing in a run contradicts a content; what lacks, or is not of the content, decides nothing."""
    values: dict[str, list[float]] = {}
    for point in content.points:
        values.setdefault(point.name, []).append(point.value)
    return all(content.params.get(name, text) == text for name, text in run.data.params.items()) and all(
        any(_same(value, own) for own in values[name]) for name, value in run.data.metrics.items() if name in values
    )


def is_empty(run: Run) -> bool:
    """Test if a run has neither params nor metrics, as one that a repeated request made."""
    return not run.data.params and not run.data.metrics


def settle(
    client: MlflowClient,
    study: StudyRun,
    record: StudyRecord,
    written: Mapping[str, RecordedLane],
    made: Mapping[str, Sequence[str]],
    *,
    again: bool = False,
) -> tuple[dict[str, str], dict[str, str]]:
    """Remove what a repeated request made and what was replaced, and check that the lanes which were ``written`` are whole.

    ``made`` has runs that were made for lanes besides those of the journal. What somebody else has given the tags of this
    record is left as it is, and is none of it. Returns ids of lane runs by lane, and of LoggedModels by engine. Raises
    `TrackingError` if the server lacks something that it said it has.
    """
    runs = study.lane_runs(client)
    lanes = _lanes(runs, record, written)
    chosen = {lane_id: run.info.run_id for lane_id, run in lanes.items()}
    own = {run_id for lane_id, lane in record.lanes.items() for run_id in (*lane.runs, *made.get(lane_id, ()))}
    surplus: list[Callable[[], object]] = [
        partial(client.delete_run, run.info.run_id)
        for run in runs
        if run.info.run_id not in chosen.values() and (run.info.run_id in own or is_empty(run))
    ]
    if unlisted := sorted(set(written) - lanes.keys()):  # their engines are nobody's, as far as such an answer tells
        raise untrue(", ".join(f"lane {lane_id}" for lane_id in unlisted))
    models: dict[str, LoggedModel] = {}
    unlisted_models = {model_id for lane in written.values() for model_id in lane.models.values()}
    listed_models = engine_log.search(client, study)
    for lane_id, run in lanes.items():
        known = written[lane_id].models if lane_id in written else record.lanes[lane_id].models
        listed = [model for model in listed_models if model.tags.get(Tag.LANE_ID) == lane_id]
        models |= engine_log.of_lane(client, listed, run, record.lanes[lane_id], known)
        unlisted_models -= {model.model_id for model in listed}
        kept = {model.model_id for model in models.values()}
        surplus += [
            partial(client.delete_logged_model, model.model_id)
            for model in listed
            if model.model_id not in kept and _is_surplus(model, run, own) and not _is_registered(client, model)
        ]
    if surplus and not again:
        for remove in surplus:
            with unless_gone():
                remove()
        return settle(client, study, record, written, made, again=True)
    wrong = [
        f"lane {lane_id}" for lane_id in sorted(written) if not is_whole(lanes[lane_id], lane_content(record, lane_id))
    ]
    outputs = {model_id for run in lanes.values() for model_id in linked(run)}
    wrong += [
        f"engine {model.model_id}"
        for model in models.values()
        if not (engine_log.is_stored(model) and model.model_id in outputs)
    ]
    wrong += [f"engine {model_id}" for model_id in sorted(unlisted_models) if not is_gone(client, model_id)]
    if surplus or wrong:
        raise untrue(", ".join(wrong) or "none of the runs or engines that were removed")
    return chosen, {engine_id: model.model_id for engine_id, model in models.items()}


def _lanes(runs: Sequence[Run], record: StudyRecord, written: Mapping[str, RecordedLane]) -> dict[str, Run]:
    """The run of each lane: the one just written, else the one that the journal names, else one that agrees with it."""
    found: dict[str, Run] = {}
    for lane_id, lane in record.lanes.items():
        own = [run for run in runs if run.data.tags.get(Tag.LANE_ID) == lane_id]
        named = written[lane_id].run_id if lane_id in written else next(iter(lane.runs[::-1]), "")
        best = [run for run in own if run.info.run_id == named]
        if not best and lane_id not in written and lane.cells:
            content = lane_content(record, lane_id)
            best = sorted(
                (run for run in own if not is_empty(run) and agrees(run, content)),
                key=lambda run: run.info.status not in ENDED,
            )
        if best:
            found[lane_id] = best[0]
    return found


def _is_surplus(model: LoggedModel, run: Run, own: Collection[str]) -> bool:
    """True for a LoggedModel of a former run of ours, or without files."""
    former = model.source_run_id in own and model.source_run_id != run.info.run_id
    return former or (model.source_run_id == run.info.run_id and str(model.status) != "READY")


def _is_registered(client: MlflowClient, model: LoggedModel) -> bool:
    versions: list[ModelVersion] = every(
        lambda token: client.search_model_versions(f"run_id = '{model.source_run_id}'", page_token=token)
    )
    return any(model_id_of(version) == model.model_id for version in versions)


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


def _same(value: float, own: float) -> bool:
    """Test if a server has kept a value; databases have no infinities."""
    return math.isclose(value, own, rel_tol=1e-9) or (math.isnan(value) and math.isnan(own)) or abs(value) > 1e308
