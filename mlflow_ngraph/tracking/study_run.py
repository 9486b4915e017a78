"""Find or create a study's experiment and MLflow run, and take over lane runs that an earlier process left.

A run that somebody else began, such as one's own training, is never written into: the study becomes a run below it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph.addresses import shown
from mlflow_ngraph.errors import TrackingError, UnreachableError
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking import artifact_stores, connection, schema
from mlflow_ngraph.tracking.connection import FORBIDDEN, NO_SUCH, every
from mlflow_ngraph.tracking.content import Content
from mlflow_ngraph.tracking.heartbeat import Heartbeat
from mlflow_ngraph.tracking.schema import Kind, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run


HANDED_OVER = "NGRAPH_RUN_ID"
"""Names the run that an entry point of this project was started as: whoever sets it gives the run to the study."""
_RUN, _ENTRY_POINT = "MLFLOW_RUN_ID", "mlflow.project.entryPoint"


def is_handed_over(run: Run) -> bool:
    """True if ``mlflow run`` of this project made a run for this study, so that it may be written into."""
    return os.environ.get(HANDED_OVER) == run.info.run_id and _ENTRY_POINT in run.data.tags


@dataclass(frozen=True)
class StudyRun:
    """The open run of a study."""

    run_id: str
    experiment_id: str
    experiment: str
    key: str
    """Key of the record; see `key_of`."""
    context_tags: dict[str, str]
    """User and source, as MLflow records them on a run that it starts itself."""
    lanes: Mapping[str, Sequence[Run]]
    """The lane runs that the record had when it was opened, by lane; the newest first."""

    def lane_runs(self, client: MlflowClient, lane_id: str | None = None) -> list[Run]:
        """The lane runs of the record, or those of one lane; the newest first."""
        query = f"{_query(self.key)} AND tags.`{Tag.KIND}` = '{Kind.LANE}'"
        if lane_id is not None:
            query += f" AND tags.`{Tag.LANE_ID}` = '{lane_id}'"
        return every(lambda token: client.search_runs([self.experiment_id], query, page_token=token))


def key_of(record: StudyRecord, experiment_id: str) -> str:
    """Key of a study's record in an experiment, which another study of this id does not have."""
    return hashlib.sha256(f"{record.id}/{record.started_at!r}/{experiment_id}".encode()).hexdigest()[:16]


class StudyRuns:
    """Finds the run of a study on a server.

    The journal and the user decide where that is. Runs that have the study's id in their tags, and are none of its
    record, decide nothing.
    """

    def __init__(self, client: MlflowClient, tracking_uri: str, experiment: str | None) -> None:
        self._client = client
        self._uri = tracking_uri
        self._asked = experiment
        self.left = ""
        """The former run that could not be opened again, and why, in one line; empty without one."""

    def check_writable(self) -> None:
        """Write something small where the study will go.

        Raises `TrackingError` if the run that ``mlflow run`` made is in another experiment than the one asked for, or
        the experiment is deleted, or its files are on a foreign host.
        """
        self._client.set_experiment_tag(self.experiment().experiment_id, Tag.SCHEMA, schema.SCHEMA_VERSION)

    def experiment(self) -> Experiment:
        """Experiment of the first run of its kind. Raises as `check_writable`."""
        return self._target(self.surrounding(), None)

    def open(self, content: Content, record: StudyRecord, heartbeat: Heartbeat) -> StudyRun:
        """The run for a study, with its params and tags; former runs of its record are ended and linked to it.

        Raises as `check_writable`, and `TrackingError` if another process is recording the study.
        """
        surrounding = self.surrounding()
        experiment = self._target(surrounding, self._former(record))
        key, experiment_id = key_of(record, experiment.experiment_id), experiment.experiment_id
        known = self._known(experiment_id, key)
        for run in known:
            _require_left(run, heartbeat)
        context = _context_tags()
        tags = {**content.tags, Tag.RECORD: key, **heartbeat.tags()}
        if surrounding is not None and _may_hold(surrounding, key):
            run = surrounding
            tags = {**{name: value for name, value in context.items() if name.startswith("ngraph.")}, **tags}
        else:
            tags = tags if surrounding is None else {**tags, Tag.PARENT: surrounding.info.run_id}
            run = _own(known, record) or self._client.create_run(
                experiment_id, content.start_ms, {**context, **tags}, content.name
            )
        connection.require_id(run.info.run_id)
        self._describe(run, content, tags)
        before, known = known, self._known(experiment_id, key)
        self._require_mine(run, known, heartbeat, new=run not in before and run is not surrounding)
        lanes: dict[str, list[Run]] = defaultdict(list)
        for other in known:
            if other.data.tags.get(Tag.KIND) == Kind.LANE:
                lanes[other.data.tags.get(Tag.LANE_ID, "")].append(other)
        study = StudyRun(run.info.run_id, experiment_id, experiment.name, key, context, lanes)
        self._take_over(study, known, handed_over=run is surrounding)
        return study

    def _known(self, experiment_id: str, key: str) -> list[Run]:
        return every(lambda token: self._client.search_runs([experiment_id], _query(key), page_token=token))

    def _former(self, record: StudyRecord) -> Experiment | None:
        """The experiment of the run that the journal names, if it is of this server and may be written into."""
        from mlflow.exceptions import MlflowException

        place = record.recorded
        if place is None:
            return None
        try:
            run = self._client.get_run(place.run_id)
            if run.info.run_id != place.run_id:
                raise TrackingError(f"it answered with another run than {place.run_id}")
            if run.data.tags.get(Tag.RECORD) != key_of(record, run.info.experiment_id):
                return None
            experiment: Experiment | None = self._client.get_experiment(run.info.experiment_id)
            why = "" if run.info.lifecycle_stage == "active" else "it is deleted"
            if experiment is not None and experiment.lifecycle_stage == "active":
                self._client.set_experiment_tag(experiment.experiment_id, Tag.SCHEMA, schema.SCHEMA_VERSION)
            else:
                experiment = None
        except MlflowException as error:
            if error.error_code == NO_SUCH:
                return None
            if error.error_code != FORBIDDEN:
                raise
            experiment, why = None, "this user may not write to it"
        if why:
            self.left = (
                f"run {place.run_id}, as which {record.id} was recorded, is left as it is ({why}): it is recorded anew"
            )
        return experiment

    def _describe(self, run: Run, content: Content, tags: dict[str, str]) -> None:
        """Write params and tags of the study, and set the run's status to running."""
        from mlflow.entities import Param, RunTag

        run_id = run.info.run_id
        params = [Param(name, value) for name, value in content.params.items() if name not in run.data.params]
        self._client.log_batch(
            run_id, params=params, tags=[RunTag(name, value) for name, value in tags.items()], synchronous=True
        )
        if Tag.RESUMED_BY in run.data.tags:
            with connection.unless_gone():
                self._client.delete_tag(run_id, Tag.RESUMED_BY)
        if run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")

    def _require_mine(self, run: Run, known: list[Run], heartbeat: Heartbeat, *, new: bool) -> None:
        """Give way to a process that opened the record in the same moment."""
        run_id = run.info.run_id
        if run_id not in (other.info.run_id for other in known):
            raise UnreachableError(f"the server does not list run {run_id}, which it made")
        for other in known:
            try:
                _require_left(other, heartbeat)
            except TrackingError:
                if new:
                    with connection.unless_gone():
                        self._client.delete_run(run_id)
                raise

    def _take_over(self, study: StudyRun, known: list[Run], *, handed_over: bool) -> None:
        """Move the lanes of former runs under this one, and end runs that a killed process left running.

        A study run beside it that no ``mlflow run`` explains was made by a request that MLflow's client repeated.
        """
        for run in known:
            run_id = run.info.run_id
            if run_id == study.run_id:
                continue
            if run.data.tags.get(Tag.KIND) != Kind.STUDY:
                if run.data.tags.get(Tag.PARENT) != study.run_id:
                    self._client.set_tag(run_id, Tag.PARENT, study.run_id)
            elif handed_over or Tag.RESUMED_BY in run.data.tags:
                if run.data.tags.get(Tag.RESUMED_BY) != study.run_id:
                    self._client.set_tag(run_id, Tag.RESUMED_BY, study.run_id)
            else:
                with connection.unless_gone():
                    self._client.delete_run(run_id)
                continue
            if run.info.status == "RUNNING":
                self._client.set_terminated(run_id, "KILLED")

    def surrounding(self) -> Run | None:
        """The run that this process was started in. Raises `TrackingError` if the server does not have it."""
        run_id = os.environ.get(_RUN)
        if run_id and connection.is_deleted(self._client, run_id):
            raise TrackingError(
                f"{_RUN} names run {run_id}, which is deleted or was never on {shown(self._uri)}: unset the variable, restore the "
                "run (mlflow runs restore), or name another"
            )
        return self._client.get_run(run_id) if run_id else None

    def _target(self, surrounding: Run | None, former: Experiment | None) -> Experiment:
        """The experiment of the study, whose files may be written with the login of the server."""
        experiment = self._chosen(surrounding, former)
        artifact_stores.require_host(f"experiment {experiment.name!r}", experiment.artifact_location, self._uri)
        return experiment

    def _chosen(self, surrounding: Run | None, former: Experiment | None) -> Experiment:
        """The experiment of the study; see `Recorder` for the order in which it is chosen."""
        if surrounding is not None and (is_handed_over(surrounding) or not self._asked):
            experiment = self._client.get_experiment(surrounding.info.experiment_id)
            if self._asked and experiment.name != self._asked:
                raise TrackingError(
                    f"this is run {surrounding.info.run_id} of experiment {experiment.name!r}, not of {self._asked!r}: "
                    f"choose the experiment with mlflow run --experiment-name {shlex.quote(str(self._asked))}"
                )
            return experiment
        name = self._asked or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        experiment_id = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if not name and experiment_id:
            return self._client.get_experiment(experiment_id)
        if not name and former is not None:
            return former
        return self._named(name or schema.DEFAULT_EXPERIMENT)

    def _named(self, name: str) -> Experiment:
        """The experiment of this name, made where there is none."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return self._made(name)
        if experiment.lifecycle_stage != "active":
            raise TrackingError(f"experiment {name!r} is deleted: restore it, or choose another name")
        return experiment

    def _made(self, name: str) -> Experiment:
        """A new experiment, or the one that another process has made in the same moment."""
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_experiment(self._client.create_experiment(name))
        except MlflowException:
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                raise
            return experiment


def _may_hold(run: Run, key: str) -> bool:
    """Test if a run may become, or is, that of a record; one that holds another study is not."""
    holds = run.data.tags.get(Tag.RECORD)
    return is_handed_over(run) and Tag.STUDY_ID not in run.data.tags if holds is None else holds == key


def _own(known: list[Run], record: StudyRecord) -> Run | None:
    """The study run of a record: that of the journal, else one that nothing was taken over from."""

    def rank(run: Run) -> tuple[bool, bool, str]:
        named = record.recorded is not None and record.recorded.run_id == run.info.run_id
        return Tag.RESUMED_BY in run.data.tags, not named, run.info.run_id

    return min((run for run in known if run.data.tags.get(Tag.KIND) == Kind.STUDY), key=rank, default=None)


def _require_left(run: Run, heartbeat: Heartbeat) -> None:
    if run.info.status == "RUNNING" and heartbeat.is_of_another(run.data.tags):
        raise TrackingError(
            f"another process is recording this study, as run {run.info.run_id}: record it again when that has ended"
        )


def _query(key: str) -> str:
    return f"tags.`{Tag.RECORD}` = '{key}'"


def _context_tags() -> dict[str, str]:
    from mlflow.tracking.context.registry import resolve_tags

    return dict(resolve_tags())
