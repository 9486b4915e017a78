"""Run of a study: that of ``mlflow run``, an earlier one, or a new one.

A run that somebody else began, such as one's own training, is never written into: the study becomes a run below it.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.connection import every
from mlflow_ngraph.tracking.content import Content
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
    context_tags: dict[str, str]
    """User and source, as MLflow records them on a run that it starts itself."""
    lanes: Mapping[str, Sequence[Run]]
    """The lane runs of the study that its experiment had when it was opened, by lane; the newest first."""

    def lane_runs(self, client: MlflowClient, study_id: str, lane_id: str | None = None) -> list[Run]:
        """The lane runs of the study in its experiment, or those of one lane; the newest first."""
        query = _query(study_id, Kind.LANE)
        if lane_id is not None:
            query += f" AND tags.`{Tag.LANE_ID}` = '{lane_id}'"
        return every(lambda token: client.search_runs([self.experiment_id], query, page_token=token))


class StudyRuns:
    """Finds the run of a study on a server."""

    def __init__(self, client: MlflowClient, experiment: str | None) -> None:
        self._client = client
        self._asked = experiment

    def check_writable(self) -> None:
        """Write something small where the study will go.

        Raises
        ------
        TrackingError
            The run that ``mlflow run`` made is in another experiment than the one asked for, or the experiment is
            deleted.
        """
        surrounding = self.surrounding()
        experiment = self._target(surrounding, [])
        self._client.set_experiment_tag(experiment.experiment_id, Tag.SCHEMA, schema.SCHEMA_VERSION)

    def experiment(self) -> Experiment:
        """Experiment of the first run of its kind.

        Raises
        ------
        TrackingError
            As in `check_writable`.
        """
        return self._target(self.surrounding(), [])

    def open(self, content: Content, study_id: str) -> StudyRun:
        """The run for a study, with its params and tags; every other run of the study is ended and linked to it."""
        experiments: list[Experiment] = every(lambda token: self._client.search_experiments(page_token=token))
        ids = [experiment.experiment_id for experiment in experiments]
        known: list[Run] = every(lambda token: self._client.search_runs(ids, _query(study_id), page_token=token))
        earlier = [run for run in known if run.data.tags.get(Tag.KIND) == Kind.STUDY]
        earlier.sort(key=lambda run: Tag.RESUMED_BY in run.data.tags)
        surrounding = self.surrounding()
        experiment = self._target(surrounding, earlier)
        context = _context_tags()
        if surrounding is not None and _may_hold(surrounding, study_id):
            run = surrounding
            tags = {name: value for name, value in context.items() if name.startswith("ngraph.")}
        else:
            run = self._own(experiment, earlier, content, context, surrounding)
            tags = {} if surrounding is None else {Tag.PARENT: surrounding.info.run_id}
        self._describe(run, content, {**tags, **content.tags})
        lanes: dict[str, list[Run]] = defaultdict(list)
        for other in known:
            if other.data.tags.get(Tag.KIND) == Kind.LANE and other.info.experiment_id == experiment.experiment_id:
                lanes[other.data.tags[Tag.LANE_ID]].append(other)
        study = StudyRun(run.info.run_id, experiment.experiment_id, experiment.name, context, lanes)
        self._take_over(study, known)
        return study

    def _own(
        self,
        experiment: Experiment,
        earlier: list[Run],
        content: Content,
        context: dict[str, str],
        surrounding: Run | None,
    ) -> Run:
        """The run that an earlier process made, or a new one."""
        for run in earlier:
            if run.info.experiment_id == experiment.experiment_id:
                return run
        tags = {**context, **content.tags}
        if surrounding is not None:
            tags[Tag.PARENT] = surrounding.info.run_id
        return self._client.create_run(experiment.experiment_id, content.start_ms, tags, content.name)

    def _describe(self, run: Run, content: Content, tags: dict[str, str]) -> None:
        """Write params and tags of the study, and set the run's status to running."""
        from mlflow.entities import Param, RunTag

        run_id = run.info.run_id
        params = [Param(name, value) for name, value in content.params.items() if name not in run.data.params]
        self._client.log_batch(
            run_id, params=params, tags=[RunTag(name, value) for name, value in tags.items()], synchronous=True
        )
        if Tag.RESUMED_BY in run.data.tags:
            self._client.delete_tag(run_id, Tag.RESUMED_BY)
        if run.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")

    def _take_over(self, study: StudyRun, known: list[Run]) -> None:
        """Move the lanes of earlier runs under this one, and end runs that a killed process left running."""
        for run in known:
            run_id = run.info.run_id
            if run_id == study.run_id:
                continue
            if run.data.tags.get(Tag.KIND) == Kind.STUDY:
                if run.data.tags.get(Tag.RESUMED_BY) != study.run_id:
                    self._client.set_tag(run_id, Tag.RESUMED_BY, study.run_id)
            elif run.info.experiment_id == study.experiment_id and run.data.tags.get(Tag.PARENT) != study.run_id:
                self._client.set_tag(run_id, Tag.PARENT, study.run_id)
            if run.info.status == "RUNNING":
                self._client.set_terminated(run_id, "KILLED")

    def surrounding(self) -> Run | None:
        """The run that this process was started in."""
        run_id = os.environ.get(_RUN)
        return self._client.get_run(run_id) if run_id else None

    def _target(self, surrounding: Run | None, earlier: list[Run]) -> Experiment:
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
        if not name and earlier:
            return self._client.get_experiment(earlier[0].info.experiment_id)
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


def _may_hold(run: Run, study_id: str) -> bool:
    """Test if a run may become, or is, that of a study; one that holds another study is not."""
    holds = run.data.tags.get(Tag.STUDY_ID)
    return is_handed_over(run) if holds is None else holds == study_id


def _query(study_id: str, kind: str | None = None) -> str:
    query = f"tags.`{Tag.STUDY_ID}` = '{study_id}'"
    return f"{query} AND tags.`{Tag.KIND}` = '{kind}'" if kind else query


def _context_tags() -> dict[str, str]:
    from mlflow.tracking.context.registry import resolve_tags

    return dict(resolve_tags())
