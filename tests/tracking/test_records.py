"""Where a study is recorded, whoever else writes there, and that the server's word is not taken for it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.store.entities import PagedList
from mlflow.tracking._tracking_service.client import TrackingServiceClient

from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.errors import TrackingError, UnreachableError
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from tests.support.recording import check_once, models, runs, small, write
from tests.support.records import study_record


class Client:
    """A client that does something else for one kind of request."""

    def __init__(self, client: MlflowClient, name: str, instead: Callable[..., Any]) -> None:
        self._client, self._name, self._instead = client, name, instead

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return (lambda *args, **kwargs: self._instead(method, *args, **kwargs)) if name == self._name else method


def recording_through(uri: str, name: str, instead: Callable[..., Any]) -> Recorder:
    return Recorder(uri, through=lambda client: cast(MlflowClient, Client(client, name, instead)))


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    return small(study_record(tmp_path / "study"))


@pytest.fixture
def directory(record: StudyRecord, tmp_path: Path) -> Path:
    return tmp_path / "study"


def repeated(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What MLflow's client does when an answer was lost: the second one counts, also where it is a refusal."""
    method(*args, **kwargs)
    return method(*args, **kwargs)


def test_runs_of_others_with_the_id_of_a_study_decide_nothing(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    client = MlflowClient(sqlite_uri)
    theirs = client.create_experiment("theirs")
    later = int(1000 * (time.time() + 86400))
    planted = [
        client.create_run(experiment, later, {Tag.KIND: kind, Tag.STUDY_ID: record.id, Tag.LANE_ID: lane}).info.run_id
        for experiment in (theirs, client.create_experiment("ngraph"))
        for kind, lane in (("study", ""), ("lane", next(iter(record.lanes))))
    ]
    before = [client.get_run(run_id).to_dictionary() for run_id in planted]
    for _ in range(2):
        recorder = Recorder(sqlite_uri)
        write(recorder, record, directory)
        record.recorded = recorder.place
    assert [client.get_run(run_id).to_dictionary() for run_id in planted] == before
    for run_id in planted:
        client.delete_run(run_id)
    check_once(client, record)
    assert client.get_experiment(recorder.place.experiment_id).name == "ngraph"


def test_a_second_place_has_a_record_of_its_own(sqlite_uri: str, record: StudyRecord, directory: Path) -> None:
    first, second = Recorder(sqlite_uri, "one"), Recorder(sqlite_uri, "two")
    write(first, record, directory)
    record.recorded = first.place
    before = first.client.get_run(first.place.run_id).to_dictionary()
    write(second, record, directory)
    assert first.client.get_run(first.place.run_id).to_dictionary() == before
    assert len(runs(first.client, record, "study")) == 2
    assert len(runs(first.client, record)) == 2 * len(record.lanes)
    assert len(models(first.client, record)) == 2 * sum(len(lane.engines) for lane in record.lanes.values())
    again = Recorder(sqlite_uri)
    again.open(record, directory)
    assert again.place == first.place, "the journal knows where"


def test_a_record_that_was_deleted_is_left_and_named(sqlite_uri: str, record: StudyRecord, directory: Path) -> None:
    first, again = Recorder(sqlite_uri, "mine"), Recorder(sqlite_uri)
    write(first, record, directory)
    record.recorded = first.place
    first.client.delete_run(first.place.run_id)
    write(again, record, directory)
    assert again.place.experiment_id == first.place.experiment_id
    (note,) = again.notes
    assert note.startswith(f"run {first.place.run_id}, as which {record.id} was recorded, is left")
    check_once(again.client, record)


def test_a_record_that_may_not_be_written_is_left_and_named(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    def refused(method: Callable[..., Any], experiment_id: str, *args: Any) -> Any:
        if experiment_id == first.place.experiment_id:
            raise MlflowException("Permission denied", PERMISSION_DENIED)
        return method(experiment_id, *args)

    first = Recorder(sqlite_uri, "theirs")
    write(first, record, directory)
    record.recorded = first.place
    again = recording_through(sqlite_uri, "set_experiment_tag", refused)
    write(again, record, directory)
    assert again.client.get_experiment(again.place.experiment_id).name == "ngraph"
    assert "this user may not write to it" in again.notes[0]


def test_nothing_is_recorded_where_files_would_take_the_login_to_another_host(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri, "theirs")
    recorder.client.create_experiment("theirs", artifact_location="http://elsewhere/1")
    for begin in (recorder.preflight, partial(recorder.open, record, directory)):
        with pytest.raises(TrackingError, match="experiment 'theirs': its files are said to be at http://elsewhere/1"):
            begin()
    assert runs(recorder.client, record, "study") == []


@pytest.mark.parametrize(
    "request_", ["create_run", "create_logged_model", "log_batch", "log_outputs", "delete_run", "delete_tag"]
)
def test_what_a_repeated_request_made_is_removed_and_its_refusal_is_no_error(
    request_: str, sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = recording_through(sqlite_uri, request_, repeated)
    write(recorder, record, directory)
    check_once(recorder.client, record)


def test_an_upload_that_was_answered_and_not_stored_is_no_engine(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    def lost(method: Callable[..., Any], model_id: str, folder: str) -> None:
        method(model_id, folder)
        (model,) = models(recorder.client, record)
        Path(model.artifact_location.removeprefix("file://"), "engine", "model.bin").unlink()

    recorder = recording_through(sqlite_uri, "log_model_artifacts", lost)
    with pytest.raises(UnreachableError, match=r"the upload of engine/model\.bin was answered, and is not stored"):
        write(recorder, record, directory)
    assert {str(model.status) for model in models(recorder.client, record)} == {"PENDING"}
    write(Recorder(sqlite_uri), record, directory)
    check_once(recorder.client, record)


def test_an_engine_whose_digest_was_answered_and_not_stored_is_stored_again(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = recording_through(sqlite_uri, "set_logged_model_tags", lambda *_: None)
    recorder.open(record, directory)
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    with pytest.raises(TrackingError, match="the server said that it has engine m-"):
        recorder.close(record, "FINISHED")
    recorder.rest()
    write(Recorder(sqlite_uri), record, directory)
    check_once(recorder.client, record)


def copied_runs(client: MlflowClient, record: StudyRecord, factor: float) -> set[str]:
    """Newer lane runs with all tags and params, and other figures."""
    made = set()
    for run in runs(client, record):
        copy = client.create_run(run.info.experiment_id, run.info.start_time + 10, run.data.tags, run.info.run_name)
        params = [Param(name, text) for name, text in run.data.params.items()]
        values = [Metric(name, factor * value, 1, 0) for name, value in run.data.metrics.items()]
        client.log_batch(copy.info.run_id, values, params)
        client.set_terminated(copy.info.run_id)
        made.add(copy.info.run_id)
    return made


def copied_models(client: MlflowClient, record: StudyRecord, *, altered: bool) -> set[str]:
    """Newer engines with all tags, and with files of their own, whose digests are right."""
    made = set()
    for model in models(client, record):
        copy = client.create_logged_model(
            model.experiment_id, model.name, model.source_run_id, model.tags, model.params, model.model_type
        )
        source, target = (Path(one.artifact_location.removeprefix("file://")) for one in (model, copy))
        shutil.copytree(source, target, dirs_exist_ok=True)
        if altered:
            manifest = target / "manifest.json"
            content = json.loads(manifest.read_text())
            content["files"] = dict.fromkeys(content["files"], "0" * 64)
            manifest.write_text(json.dumps(content))
            client.set_logged_model_tags(copy.model_id, {Tag.MANIFEST_SHA256: sha256(manifest)})
        client.finalize_logged_model(copy.model_id, "READY")
        made.add(copy.model_id)
    return made


@pytest.mark.parametrize("named", [True, False], ids=["ids in the journal", "none"])
@pytest.mark.parametrize("altered", [True, False])
def test_copies_with_the_tags_of_a_record_are_none_of_it(
    altered: bool, named: bool, sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri)
    write(recorder, record, directory)
    client = recorder.client
    mine = {run.info.run_id for run in runs(client, record)}
    engines = {model.model_id for model in models(client, record)}
    theirs = copied_runs(client, record, 7.0 if altered else 1.0)
    copies = copied_models(client, record, altered=altered)
    for lane in record.lanes.values():
        if not named:
            lane.runs, lane.models = (), {}
    for _ in range(2):
        again = Recorder(sqlite_uri)
        write(again, record, directory)
        assert {run.info.run_id for run in runs(client, record)} == mine | theirs
        assert {model.model_id for model in models(client, record)} == engines | copies
        if named or altered:
            assert {lane.runs[-1] for lane in record.lanes.values()} == mine
            assert {model for lane in record.lanes.values() for model in lane.models.values()} == engines
            assert len(again.notes) == len(theirs)


@pytest.mark.parametrize("removed", [True, False])
def test_tags_that_somebody_removed_or_changed_are_written_again(
    removed: bool, sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri)
    write(recorder, record, directory)
    (model,) = models(recorder.client, record)
    for name in model.tags:
        if name.startswith("ngraph.") and removed:
            recorder.client.delete_logged_model_tag(model.model_id, name)
        elif name.startswith("ngraph."):
            recorder.client.set_logged_model_tags(model.model_id, {name: "nonsense"})
    write(Recorder(sqlite_uri), record, directory)
    check_once(recorder.client, record)
    restored = recorder.client.get_logged_model(model.model_id).tags
    assert {name: restored[name] for name in model.tags} == model.tags


def test_an_engine_of_the_registry_stays_when_its_lane_is_measured_further(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri)
    write(recorder, record, directory, "KILLED")
    champion = models(recorder.client, record)[0]
    recorder.client.create_registered_model("champions")
    recorder.client.create_model_version("champions", f"models:/{champion.model_id}", model_id=champion.model_id)
    lane = record.lanes[champion.tags[Tag.LANE_ID]]
    next(iter(lane.cells.values())).finished_at += 100
    write(Recorder(sqlite_uri), record, directory)
    assert str(recorder.client.get_logged_model(champion.model_id).status) == "READY"
    assert champion.model_id not in lane.models.values()


@pytest.mark.parametrize("request_", ["search_runs", "search_logged_models"])
def test_an_empty_list_of_what_was_written_removes_nothing(
    request_: str, sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    closing = False

    def nothing(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return PagedList([], None) if closing else method(*args, **kwargs)

    recorder = recording_through(sqlite_uri, request_, nothing)
    recorder.open(record, directory)
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    closing = True
    with pytest.raises(TrackingError, match="the server said that it has"):
        recorder.close(record, "FINISHED")
    closing = False
    recorder.close(record, "FINISHED")
    check_once(recorder.client, record)


def test_an_answer_without_the_place_of_files_is_none(
    sqlite_uri: str, record: StudyRecord, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, get = Recorder(sqlite_uri), TrackingServiceClient.get_logged_model

    def nowhere(client: TrackingServiceClient, model_id: str) -> LoggedModel:
        model = get(client, model_id)
        model._artifact_location = ""
        return model

    recorder.open(record, directory)
    lane = next(key for key, lane in record.lanes.items() if lane.engines)
    monkeypatch.setattr(TrackingServiceClient, "get_logged_model", nowhere)
    with pytest.raises(UnreachableError, match="answered without the place of files of m-"):
        recorder.record_lane(record, lane)
    monkeypatch.undo()
    recorder.record_lane(record, lane)
    (model,) = models(recorder.client, record)
    assert model.status == "READY"


def test_files_that_are_missing_are_stored_again_under_the_same_manifest(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri)
    write(recorder, record, directory)
    (before, *_) = models(recorder.client, record)
    place = Path(before.artifact_location.removeprefix("file://"))
    lost, cut = place / "engine" / "nested" / "meta.json", place / "engine" / "model.bin"
    content = cut.read_bytes()
    lost.unlink()
    cut.write_bytes(b"")
    write(Recorder(sqlite_uri), record, directory)
    assert lost.is_file()
    assert cut.read_bytes() == content
    after = recorder.client.get_logged_model(before.model_id)
    assert after.tags[Tag.MANIFEST_SHA256] == before.tags[Tag.MANIFEST_SHA256]


def test_an_engine_that_was_deleted_stays_so_and_is_named(
    sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    recorder = Recorder(sqlite_uri)
    write(recorder, record, directory)
    (model,) = models(recorder.client, record)
    recorder.client.delete_logged_model(model.model_id)
    again = Recorder(sqlite_uri)
    write(again, record, directory)
    assert f"engine {model.tags[Tag.ENGINE_ID]} of lane run {model.source_run_id} was deleted" in again.notes[0]
    again.client.delete_run(model.source_run_id)
    write(Recorder(sqlite_uri), record, directory)
    check_once(again.client, record)


@pytest.mark.parametrize("silent_s", [5, -86400, 3600])
def test_who_records_at_the_same_time_stops(
    silent_s: float, sqlite_uri: str, record: StudyRecord, directory: Path
) -> None:
    first = Recorder(sqlite_uri)
    run_id = first.open(record, directory)
    first.client.set_tag(run_id, Tag.RECORDER, "0123456789ab/17/1700000000")
    first.client.set_tag(run_id, Tag.ALIVE_AT, f"{time.time() - silent_s:.0f}")
    if silent_s == 5:
        with pytest.raises(TrackingError, match=f"another process is recording this study, as run {run_id}"):
            Recorder(sqlite_uri).open(record, directory)
        with pytest.raises(TrackingError, match="another process has taken over"):
            first.close(record, "FINISHED")
    else:
        assert Recorder(sqlite_uri).open(record, directory) == run_id, "dead, or a sign of life that would never end"


def test_an_error_of_a_database_is_told_without_its_statement() -> None:
    text = "(sqlite3.OperationalError) database is locked [SQL: INSERT INTO tags VALUES (?)] [parameters: ('x',)]"
    assert connection.one_line(RuntimeError(text)) == "(sqlite3.OperationalError) database is locked"


@pytest.mark.parametrize("answered", ["", "0", "m-0123"])
def test_an_answer_without_the_id_of_what_was_made_is_none(answered: str) -> None:
    with pytest.raises(UnreachableError, match="without the id"):
        connection.require_id(answered)
