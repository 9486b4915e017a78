"""The run of a study: attach to the one that ``mlflow run`` made, go on with an earlier one, or make one."""

from __future__ import annotations

import os
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


@dataclass(frozen=True)
class StudyRun:
    """The run of a study that is open."""

    run_id: str
    experiment_id: str
    experiment: str
    context_tags: dict[str, str]
    """Who, from what source: what MLflow puts on a run that it starts itself."""

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
        TrackingError: the run that ``MLFLOW_RUN_ID`` names is in another experiment than the one asked for, or the
            experiment is deleted.
        """
        surrounding = self._surrounding()
        experiment = self._target(surrounding, [])
        self._client.set_experiment_tag(experiment.experiment_id, Tag.SCHEMA, schema.SCHEMA_VERSION)

    def open(self, content: Content, study_id: str) -> StudyRun:
        """The run for a study, with its params and tags; every other run of the study is ended and linked to it."""
        experiments = every(lambda token: self._client.search_experiments(page_token=token))
        ids = [experiment.experiment_id for experiment in experiments]
        known = self._search(ids, _query(study_id))
        earlier = [run for run in known if run.data.tags.get(Tag.KIND) == Kind.STUDY]
        surrounding = self._surrounding()
        experiment = self._target(surrounding, earlier)
        tags = {**_context_tags(), **content.tags}
        run = self._study_run(surrounding, experiment, earlier, content, study_id, tags)
        study = StudyRun(run.info.run_id, experiment.experiment_id, experiment.name, _context_tags())
        self._take_over(study, known)
        return study

    def _study_run(
        self,
        surrounding: Run | None,
        experiment: Experiment,
        earlier: list[Run],
        content: Content,
        study_id: str,
        tags: dict[str, str],
    ) -> Run:
        here = [run for run in earlier if run.info.experiment_id == experiment.experiment_id]
        if surrounding is not None and surrounding.data.tags.get(Tag.STUDY_ID, study_id) == study_id:
            return self._describe(surrounding, content, tags)
        if surrounding is not None:
            tags[Tag.PARENT] = surrounding.info.run_id
        if here:
            return self._describe(here[0], content, tags)
        made = self._client.create_run(experiment.experiment_id, content.start_ms, tags, content.name)
        return self._describe(made, content, tags)
