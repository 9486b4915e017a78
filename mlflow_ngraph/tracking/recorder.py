"""Recorder of a study in MLflow; recording again after a crash changes nothing.

Every run and model is looked for by the ids of the study, the lane and the engine before it is made, and every
time stamp comes from the record. The run of a lane never changes what it says: a lane that was measured further
gets a new run in place of the former, which goes to MLflow's trash. One process at a time may write a study; the
lock of its journal sees to that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import damage
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.tracking import connection, description, engine_log, files, schema, views
from mlflow_ngraph.tracking.content import Content, came_to_something, lane_content, study_content, study_tags
from mlflow_ngraph.tracking.engine_log import ModelSlot
from mlflow_ngraph.tracking.heartbeat import Heartbeat
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.study_run import StudyRun, StudyRuns

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Metric, Run


class Recorder:
    """Writes the record of one study to one tracking server.

    Parameters
    ----------
    tracking_uri : str | None
        MLflow's own default when left out.
    experiment : str | None
        Its name; else that of the run that ``mlflow run`` made, else ``MLFLOW_EXPERIMENT_NAME`` or
        ``MLFLOW_EXPERIMENT_ID``, else that in which the study was recorded before, else ``ngraph``.
    patient : bool
        Wait for a slow server. A study does not: it can record later.
    through : Callable[[MlflowClient], MlflowClient]
        Makes the client that requests go through from one that MLflow has made.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        *,
        patient: bool = False,
        through: Callable[[MlflowClient], MlflowClient] = lambda client: client,
    ) -> None:
        self._asked_uri = tracking_uri
        self._settings = connection.RECORDING if patient else connection.IN_TIME
        self._through = through
        self._experiment = experiment
        self._study: StudyRun | None = None
        self._directory = Path()
        self._heartbeat: Heartbeat | None = None
        self._views: list[str] | None = None
        """The models that have views of their own; None where the server shows no views, as far as is known."""
        self._tried: set[str] = set()
        """Lanes that were recorded since the study was opened, or may have been."""

    @cached_property
    def tracking_uri(self) -> str:
        """Address of the store that this recorder writes to."""
        return connection.resolve_uri(self._asked_uri)

    @cached_property
    def client(self) -> MlflowClient:
        """Client of all requests."""
        return self._through(connection.connect(self.tracking_uri))

    def preflight(self) -> None:
        """Find out whether the server answers and lets us write, before anything is measured.

        Raises
        ------
        TrackingError
            It does not answer within about ten seconds, or refuses.
        """
        self.client = self._through(connection.reach(self.tracking_uri, create=True))
        with connection.talking(self.tracking_uri, "write to it", connection.PREFLIGHT):
            self._runs().check_writable()

    def open(self, record: StudyRecord, directory: Path) -> str:
        """Make, attach to or reopen the run of a study, and end runs that an earlier process left running.

        Parameters
        ----------
        directory : Path
            The study's own directory; engines are read from it.

        Returns
        -------
        str
            The id of the study run.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        with self._talking("open the study run"):
            self._directory = directory
            self._study = self._runs().open(study_content(record), record.id)
            self.rest()
            self._heartbeat = Heartbeat(self.client, self.tracking_uri)
            self._heartbeat.start(self._study.run_id)
        return self._study.run_id

    def rest(self) -> None:
        """Give no more signs of life. To be called when the study run is left, whether it was closed or not."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def record_lane(self, record: StudyRecord, lane_id: str) -> str:
        """Write a lane with its engines; a lane that is written already is left alone.

        Returns
        -------
        str
            The id of the lane run.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        study = self._opened()
        lane = record.lanes[lane_id]
        content = lane_content(record, lane_id)
        problems = {
            engine.id: problem
            for engine in lane.engines
            if (problem := _unfit(self._directory / engine.directory, engine))
        }
        with self._talking(f"record lane {lane_id}"):
            run = self._lane_run(study, record, lane_id, content)
            if run.info.status in ("FINISHED", "FAILED"):
                return str(run.info.run_id)
            intact = [engine for engine in lane.engines if engine.id not in problems]
            self._fill(run, record, content, intact, problems)
            status = "FINISHED" if came_to_something(lane) else "FAILED"
            self.client.set_terminated(run.info.run_id, status, end_time=content.end_ms)
        return str(run.info.run_id)

    def close(self, record: StudyRecord, status: str, answers: Sequence[str] = ()) -> str:
        """Write the results table, the samples and the other files of the study, and end its run.

        Parameters
        ----------
        status : str
            ``FINISHED``, ``FAILED`` or ``KILLED``.
        answers : Sequence[str]
            Conclusions from the results, a line each; the description of the run begins with them.

        Returns
        -------
        str
            The id of the study run.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        study = self._opened()
        content = study_content(record)
        with self._talking("write the results of the study"):
            run = self.client.get_run(study.run_id)
            measured = description.models(record)
            if views.supported(connection.server_version(self.tracking_uri)):
                self._views = views.install(self.client, study.experiment_id, measured)
            charts = {model: views.model_link("", study.experiment_id, model)[1:] for model in self._views or ()}
            note = description.of_study(record, answers, charts)
            self._log(run, content, {}, {**study_tags(record), Tag.NOTE: note})
            with tempfile.TemporaryDirectory() as temporary:
                target = Path(temporary)
                lane_runs, models = self._ids(study, record.id)
                files.write(record, self._directory, target, study.run_id, lane_runs, models)
                self.client.log_artifacts(study.run_id, str(target))
                # Last, so that whoever reads the tag finds the table that it speaks of.
                self.client.set_tag(study.run_id, Tag.RESULTS_SHA256, files.digest(target / schema.Artifact.RESULTS))
            self.client.set_terminated(study.run_id, status, end_time=content.end_ms)
        self.rest()
        return study.run_id

    def where(self) -> dict[str, str]:
        """Id of the study's run and, for people, its addresses or, without a server, the command that shows it."""
        study = self._opened()
        places = {"tracking_uri": addresses.shown(self.tracking_uri), "experiment": study.experiment}
        places["run_id"] = study.run_id
        if not connection.is_server(self.tracking_uri):
            return {**places, "ui": views.command(self.tracking_uri)}
        base = places["tracking_uri"].rstrip("/")
        places["run"] = views.run_link(base, study.experiment_id, study.run_id)
        if self._views is not None:
            of_one = views.model_link(base, study.experiment_id, self._views[0]) if len(self._views) == 1 else None
            places["view"] = of_one or views.link(base, study.experiment_id)
        return places

    def _talking(self, doing: str) -> AbstractContextManager[None]:
        return connection.talking(self.tracking_uri, doing, self._settings)

    def _runs(self) -> StudyRuns:
        return StudyRuns(self.client, self._experiment)

    def _opened(self) -> StudyRun:
        if self._study is None:
            raise TrackingError("the study run is not open: call Recorder.open first")
        return self._study

    def _lane_run(self, study: StudyRun, record: StudyRecord, lane_id: str, content: Content) -> Run:
        """The run with this content: the existing one, or a new one in its place."""
        digest = content.digest()
        kept = None
        # A request that failed may have done what it asked for.
        known = (
            study.lane_runs(self.client, record.id, lane_id) if lane_id in self._tried else study.lanes.get(lane_id, ())
        )
        self._tried.add(lane_id)
        for run in known:
            if kept is None and run.data.tags.get(Tag.CONTENT) == digest:
                kept = run
            else:
                # Its figures are those of the table until the study is closed: nobody has withdrawn them.
                self.client.set_tag(run.info.run_id, Tag.RESUMED_BY, study.run_id)
                self.client.delete_run(run.info.run_id)
        if kept is None:
            tags = {**study.context_tags, **content.tags, Tag.CONTENT: digest, Tag.PARENT: study.run_id}
            kept = self.client.create_run(study.experiment_id, content.start_ms, tags, content.name)
        elif kept.data.tags.get(Tag.PARENT) != study.run_id:
            self.client.set_tag(kept.info.run_id, Tag.PARENT, study.run_id)
        return kept

    def _fill(
        self, run: Run, record: StudyRecord, content: Content, engines: list[EngineRecord], problems: dict[str, str]
    ) -> None:
        """Models first, because a metric names its model; then all numbers at once, then the files."""
        from mlflow.entities import LoggedModelOutput

        run_id, experiment_id = run.info.run_id, run.info.experiment_id
        slots = {
            engine.id: engine_log.open_model(self.client, experiment_id, run_id, record, engine, content)
            for engine in engines
        }
        tags = {Tag.ENGINE_PROBLEM: schema.cut("; ".join(problems.values()), schema.MAX_TAG)} if problems else {}
        self._log(run, content, slots, tags)
        for engine in engines:
            if not slots[engine.id].ready:
                source = self._directory / engine.directory
                with connection.uploading(engine.size_bytes):
                    engine_log.log_engine(self.client, slots[engine.id], run, record, engine, source)
        linked = {output.model_id for output in (run.outputs.model_outputs if run.outputs else ())}
        missing = [LoggedModelOutput(slot.model_id, 0) for slot in slots.values() if slot.model_id not in linked]
        if missing:
            self.client.log_outputs(run_id, missing)

    def _log(self, run: Run, content: Content, slots: dict[str, ModelSlot], tags: dict[str, str]) -> None:
        """Everything in one request. Params are written once: MLflow refuses to change them."""
        from mlflow.entities import Param, RunTag

        run_id = run.info.run_id
        metrics = _metrics(run_id, content, slots)
        params = [Param(name, value) for name, value in content.params.items() if name not in run.data.params]
        run_tags = [RunTag(name, value) for name, value in tags.items()]
        self.client.log_batch(run_id, metrics, params, run_tags, synchronous=True)

    def _ids(self, study: StudyRun, study_id: str) -> tuple[dict[str, str], dict[str, str]]:
        """Ids of lane runs by lane, and of LoggedModels by engine."""
        runs = study.lane_runs(self.client, study_id)
        lanes = {run.data.tags[Tag.LANE_ID]: run.info.run_id for run in runs}
        query = f"tags.`{Tag.STUDY_ID}` = '{study_id}'"
        models: list[LoggedModel] = connection.every(
            lambda token: self.client.search_logged_models([study.experiment_id], query, page_token=token)
        )
        return lanes, {model.tags[Tag.ENGINE_ID]: model.model_id for model in models if Tag.ENGINE_ID in model.tags}


def _unfit(directory: Path, engine: EngineRecord) -> str:
    """Reason why an engine cannot be logged; empty if it can."""
    if problem := damage(directory, engine.files):
        return problem
    try:
        EngineSpec.read(directory)
    except EngineError as error:
        return str(error)
    return ""


def _metrics(run_id: str, content: Content, slots: dict[str, ModelSlot]) -> list[Metric]:
    """The points of a run; each also one of its model, unless the model has it: MLflow refuses it a second time."""
    from mlflow.entities import Metric

    metrics = []
    for point in content.points:
        slot = slots.get(point.engine or "")
        new = slot is not None and (point.name, point.step) not in slot.points
        model_id = slot.model_id if slot and new else None
        metrics.append(Metric(point.name, point.value, point.at_ms, point.step, model_id=model_id, run_id=run_id))
    return metrics
