"""Recorder: writes a study's runs, engines and result files to MLflow; after a crash it adds only missing parts.

A study has one record in an experiment: a study run, lane runs and engines with the key of the record in a tag. The journal
names the runs and engines that were made. What it does not name, as its answer was lost, is looked for by this key and the id
of the lane or engine, and adopted if it agrees with the journal; what somebody else gave these tags is left alone. Every time
stamp comes from the journal. The
run of a lane never changes what it says: a lane that was measured further gets a new run in place of the former, which
goes to MLflow's trash. One process at a time may write a record: the lock of the journal sees to that on a machine, signs
of life on the server between machines.

An answer of the server may be lost, invented by a proxy, or come before anything is stored. So what was made twice is
removed, sizes of files are listed before an engine is READY, and a study run is ended only after it was read again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import damage, sha256
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.execute.record import EngineRecord, LaneRecord, Place, StudyRecord
from mlflow_ngraph.tracking import connection, description, engine_log, files, recorded, schema, views
from mlflow_ngraph.tracking.content import Content, came_to_something, lane_content, study_content, study_tags
from mlflow_ngraph.tracking.engine_log import ModelSlot
from mlflow_ngraph.tracking.heartbeat import Heartbeat
from mlflow_ngraph.tracking.recorded import RecordedLane
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.study_run import StudyRun, StudyRuns

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run


class Recorder:
    """Writes the record of one study to one tracking server. Raises `TrackingError` where that does not take it.

    Parameters
    ----------
    tracking_uri : str | None
        MLflow's own default when left out.
    experiment : str | None
        Its name; else that of the run that ``mlflow run`` made, else ``MLFLOW_EXPERIMENT_NAME`` or
        ``MLFLOW_EXPERIMENT_ID``, else that in which the journal says it was recorded, else ``ngraph``.
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
        self._views: dict[str, str] | None = None
        """The models that have views of their own; None where the server shows no views, as far as is known."""
        self._tried: set[str] = set()
        """Lanes that were recorded since the study was opened, or may have been."""
        self._written: dict[str, RecordedLane] = {}
        """Those of which the server said so."""
        self._made: dict[str, list[str]] = {}
        """Runs that were made for lanes, also where the server says later that it has none."""
        self.notes: list[str] = []

    @cached_property
    def tracking_uri(self) -> str:
        return connection.resolve_uri(self._asked_uri)

    @cached_property
    def client(self) -> MlflowClient:
        return self._through(connection.connect(self.tracking_uri))

    def preflight(self) -> None:
        """Find out whether the server answers and lets us write, before anything is measured.

        Raises `TrackingError` if it does not answer within about ten seconds, or refuses.
        """
        self.reach()
        with connection.talking(self.tracking_uri, "write to it", connection.PREFLIGHT):
            self._runs().check_writable()

    def reach(self) -> None:
        """Find out whether the server answers. Raises `TrackingError` if it does not within about ten seconds."""
        self.client = self._through(connection.reach(self.tracking_uri, create=True))

    def open(self, record: StudyRecord, directory: Path) -> str:
        """Make, attach to or reopen the run of a study, and end runs that an earlier process left; return its id.

        Engines are read from the study's own ``directory``.
        """
        with self._talking("open the study run"):
            self._directory = directory
            heartbeat, runs = Heartbeat(self.client, self.tracking_uri), self._runs()
            self._study = runs.open(study_content(record), record, heartbeat)
            self.notes += [runs.left] if runs.left else []
            self.rest()
            self._heartbeat = heartbeat
            heartbeat.start(self._study.run_id)
        return self._study.run_id

    @property
    def place(self) -> Place:
        """The open run, for the journal."""
        study = self._opened()
        return Place(study.experiment_id, study.run_id)

    def rest(self) -> None:
        """Give no more signs of life. To be called when the study run is left, whether it was closed or not."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def record_lane(
        self, record: StudyRecord, lane_id: str, made: Callable[[str], object] = lambda run_id: None
    ) -> RecordedLane:
        """Write a lane with its engines, or what is missing of one that is written.

        ``made`` is called with the id of a new run before anything is written to it, for the journal: by it the run is known
        again, whatever others write to the server.
        """
        study = self._opened()
        lane = record.lanes[lane_id]
        content = lane_content(record, lane_id)
        content = replace(content, tags={**content.tags, Tag.RECORD: study.key})
        problems = {
            engine.id: problem
            for engine in lane.engines
            if (problem := _unfit(self._directory / engine.directory, engine))
        }
        with self._talking(f"record lane {lane_id}"):
            run, new = self._lane_run(study, lane, content)
            if new:
                made(run.info.run_id)
            slots = {} if new else engine_log.find(self.client, study, run, lane)
            self._fill(run, record, content, slots, problems)
            if run.info.status not in recorded.ENDED:
                status = "FINISHED" if came_to_something(lane) else "FAILED"
                self.client.set_terminated(run.info.run_id, status, end_time=content.end_ms)
        models = {engine_id: slot.model_id for engine_id, slot in slots.items()}
        self._written[lane_id] = RecordedLane(run.info.run_id, models)
        return self._written[lane_id]

    def close(self, record: StudyRecord, status: str, answers: Sequence[str] = ()) -> str:
        """Write the results table, the samples and the other files of the study, and end its run; return its id.

        ``status`` is ``FINISHED``, ``FAILED`` or ``KILLED``. ``answers`` are conclusions from the results, a line each;
        the description of the run begins with them.
        """
        study = self._opened()
        content = study_content(record)
        with self._talking("write the results of the study"):
            run = self.client.get_run(study.run_id)
            if self._heartbeat is not None and self._heartbeat.is_of_another(run.data.tags):
                raise TrackingError("another process has taken over the record: leave the rest to it")
            measured = description.models(record)
            if views.supported(connection.server_version(self.tracking_uri)):
                self._views = views.install(self.client, study.experiment_id, measured)
            shown = (self._views or {}).items()
            charts = {model: views.link("", study.experiment_id, view)[1:] for model, view in shown}
            note = description.of_study(record, answers, charts)
            self._log(run, content, {}, {**study_tags(record), Tag.NOTE: note})
            with tempfile.TemporaryDirectory() as temporary:
                target = Path(temporary)
                files.write(
                    record,
                    self._directory,
                    target,
                    study.run_id,
                    *recorded.settle(self.client, study, record, self._written, self._made),
                )
                with files.placed(study.run_id):
                    self.client.log_artifacts(study.run_id, str(target))
                files.require_stored(target, partial(self.client.list_artifacts, study.run_id))
                # Last, so that whoever reads the tag finds the table that it speaks of.
                digest = sha256(target / schema.Artifact.RESULTS)
                self.client.set_tag(study.run_id, Tag.RESULTS_SHA256, digest)
            self.client.set_terminated(study.run_id, status, end_time=content.end_ms)
            run = self.client.get_run(study.run_id)
            told = run.info.status == status and run.data.tags.get(Tag.RESULTS_SHA256) == digest
            if not (told and recorded.is_whole(run, content)):
                raise recorded.untrue(f"run {study.run_id}")
        self.rest()
        return study.run_id

    def end(self, status: str) -> None:
        """End the run of a study whose journal is gone, as it is."""
        with self._talking("end the study run"):
            self.client.set_terminated(self._opened().run_id, status)

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
            view = next(iter(self._views.values())) if len(self._views) == 1 else views.DEVICE_COMPARISON
            places["view"] = views.link(base, study.experiment_id, view)
        return places

    def _talking(self, doing: str) -> AbstractContextManager[None]:
        return connection.talking(self.tracking_uri, doing, self._settings)

    def _runs(self) -> StudyRuns:
        return StudyRuns(self.client, self.tracking_uri, self._experiment)

    def _opened(self) -> StudyRun:
        if self._study is None:
            raise TrackingError("the study run is not open: call Recorder.open first")
        return self._study

    def _lane_run(self, study: StudyRun, lane: LaneRecord, content: Content) -> tuple[Run, bool]:
        """The run with this content: the existing one, or a new one in its place; and whether it is new.

        A run that the journal does not name is left as it is if its figures are not those of the journal.
        """
        digest, lane_id = content.digest(), lane.lane.id
        own = (*lane.runs, *self._made.get(lane_id, ()))
        kept = None
        # A request that failed may have done what it asked for.
        known = study.lane_runs(self.client, lane_id) if lane_id in self._tried else study.lanes.get(lane_id, ())
        self._tried.add(lane_id)
        for run in sorted(known, key=lambda run: run.info.run_id not in own):
            named = run.info.run_id in own
            if kept is None and run.data.tags.get(Tag.CONTENT) == digest and (named or recorded.agrees(run, content)):
                kept = run
            elif not (named or recorded.is_empty(run)):
                self.notes.append(
                    f"run {run.info.run_id} has the tags of lane {lane_id}, and is not of this study's journal: it is left as it is"
                )
            else:
                # Its figures are those of the table until the study is closed: nobody has withdrawn them.
                self.client.set_tag(run.info.run_id, Tag.RESUMED_BY, study.run_id)
                with connection.unless_gone():
                    self.client.delete_run(run.info.run_id)
        if kept is None:
            tags = {**study.context_tags, **content.tags, Tag.CONTENT: digest, Tag.PARENT: study.run_id}
            kept = self.client.create_run(study.experiment_id, content.start_ms, tags, content.name)
            connection.require_id(kept.info.run_id)
            self._made.setdefault(lane_id, []).append(kept.info.run_id)
            return kept, True
        if kept.data.tags.get(Tag.PARENT) != study.run_id:
            self.client.set_tag(kept.info.run_id, Tag.PARENT, study.run_id)
        return kept, False

    def _fill(
        self,
        run: Run,
        record: StudyRecord,
        content: Content,
        slots: dict[str, ModelSlot],
        problems: dict[str, str],
    ) -> None:
        """Models first, because a metric names its model; then all numbers at once, then the files."""
        run_id, ended = run.info.run_id, run.info.status in recorded.ENDED
        engines = record.lanes[content.tags[Tag.LANE_ID]].engines
        for engine in engines:
            if engine.id in slots or engine.id in problems:
                continue
            if ended and Tag.ENGINE_PROBLEM not in run.data.tags:
                self.notes.append(
                    f"engine {engine.id} of lane run {run_id} was deleted on the server, and stays so; to have it back, "
                    "delete that run as well and record the study again"
                )
                continue
            slots[engine.id] = engine_log.create(self.client, run, record, engine, content)
        for engine in engines:
            if engine.id in slots and not slots[engine.id].intact:
                engine_log.write_tags(self.client, slots[engine.id], record, engine, content)
        if not (ended and recorded.is_whole(run, content)):
            tags = {Tag.ENGINE_PROBLEM: schema.cut("; ".join(problems.values()), schema.MAX_TAG)} if problems else {}
            self._log(run, content, slots, tags)
        for engine in engines:
            if engine.id in slots:
                self._upload(slots[engine.id], run, record, engine, problems.get(engine.id, ""), check=ended)
        self._link(run, [slot.model_id for slot in slots.values()])

    def _upload(
        self, slot: ModelSlot, run: Run, record: StudyRecord, engine: EngineRecord, problem: str, *, check: bool
    ) -> None:
        """Store the files of an engine that the server lacks."""
        if slot.pruned or (slot.ready and not (check and engine_log.lacks_files(self.client, slot, engine))):
            return
        if problem:
            self.notes.append(f"engine {slot.model_id} lacks files on the server, and here: {problem}")
            return
        with connection.uploading(engine.size_bytes):
            engine_log.log_engine(self.client, slot, run, record, engine, self._directory / engine.directory)

    def _link(self, run: Run, model_ids: list[str]) -> None:
        """Make models outputs of a run; refused is what a repeated request has done already."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.exceptions import MlflowException

        missing = [LoggedModelOutput(model_id, 0) for model_id in model_ids if model_id not in recorded.linked(run)]
        if missing:
            try:
                self.client.log_outputs(run.info.run_id, missing)
            except MlflowException:
                if not recorded.linked(self.client.get_run(run.info.run_id)).issuperset(model_ids):
                    raise

    def _log(self, run: Run, content: Content, slots: dict[str, ModelSlot], tags: dict[str, str]) -> None:
        """Everything in one request. Params are written once: MLflow refuses to change them."""
        from mlflow.entities import Param, RunTag
        from mlflow.exceptions import MlflowException

        run_id = run.info.run_id
        params = [Param(name, value) for name, value in content.params.items() if name not in run.data.params]
        run_tags = [RunTag(name, value) for name, value in tags.items()]
        try:
            self.client.log_batch(run_id, _metrics(run_id, content, slots), params, run_tags, synchronous=True)
        except MlflowException:
            if not slots:
                raise
            # A model has each point once: a request that is repeated, as its answer was lost, is refused.
            slots.update({engine: engine_log.slot_of(self.client, slot.model_id) for engine, slot in slots.items()})
            self.client.log_batch(run_id, _metrics(run_id, content, slots), params, run_tags, synchronous=True)


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
