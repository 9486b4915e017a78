"""Engines come back from a tracking server as they were, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from mlflow_ngraph import runner
from mlflow_ngraph.engines.files import digest_files, sha256
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.shared_engines import ServerEngines
from tests.support.records import lane_id, study_record

pytestmark = pytest.mark.long

REQUIRES = {"openvino": "1.23.0"}


def recorded(uri: str, directory: Path, study_id: str = "theirs", **changes: Any) -> tuple[StudyRecord, EngineRecord]:
    """A study of a colleague on the server, with one engine, of which some fields are ``changes``."""
    record = study_record(directory, study_id=study_id)
    lane = record.lanes[lane_id(record, "resnet18", "openvino")]
    engine = lane.engines[0].model_copy(update=changes)
    lane.engines = [engine]
    lane.cells = {1: lane.cells[1]}
    record.lanes = {lane.lane.id: lane}
    recorder = Recorder(uri)
    recorder.open(record, directory)
    recorder.record_lane(record, lane.lane.id)
    recorder.close(record, "FINISHED")
    return record, engine


def models(uri: str, key: str) -> list[Any]:
    client = MlflowClient(uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_logged_models(ids, f"tags.`{Tag.ENGINE_KEY}` = '{key}'"))


def replace_artifact(uri: str, key: str, place: Path, path: str, change: Callable[[bytes], bytes]) -> None:
    """Change a file of an engine on the server."""
    (model,) = models(uri, key)
    file = Path(download_artifacts(f"{model.artifact_location}/{path}", dst_path=str(place), tracking_uri=uri))
    changed = place / "changed" / file.name
    changed.parent.mkdir(exist_ok=True)
    changed.write_bytes(change(file.read_bytes()))
    MlflowClient(uri).log_model_artifact(model.model_id, str(changed))
    if "/" in path:  # the client writes single files to the root only
        (changed.parent / "engine").mkdir(exist_ok=True)
        changed.rename(changed.parent / "engine" / file.name)
        MlflowClient(uri).log_model_artifacts(model.model_id, str(changed.parent))


def edit_manifest(uri: str, key: str, place: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    def change(content: bytes) -> bytes:
        manifest = json.loads(content)
        edit(manifest)
        return json.dumps(manifest).encode()

    replace_artifact(uri, key, place, "manifest.json", change)


def believe(uri: str, key: str, place: Path) -> None:
    """Let the server say that the manifest which it has now is the one that was logged."""
    (model,) = models(uri, key)
    path = Path(download_artifacts(f"{model.artifact_location}/manifest.json", dst_path=str(place), tracking_uri=uri))
    MlflowClient(uri).set_logged_model_tags(model.model_id, {Tag.MANIFEST_SHA256: sha256(path)})


def test_an_engine_comes_back_with_its_history(sqlite_uri: str, tmp_path: Path) -> None:
    record, engine = recorded(sqlite_uri, tmp_path / "theirs")
    found = ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", pytest.fail)
    assert found is not None
    assert digest_files(tmp_path / "here") == engine.files == found.engine_files()
    assert (found.compiled.key, found.compiled.stages, found.spec.flags) == (engine.key, engine.stages, engine.flags)
    assert (found.made_by.study_id, found.made_by.engine_id) == (record.id, engine.id)
    assert found.made_by.compiled_at == engine.at
    assert found.made_by.machine == record.fingerprint["digest"]
    (model,) = models(sqlite_uri, engine.key)
    assert (found.made_by.model_id, found.made_by.run_id) == (model.model_id, model.source_run_id)
    assert found.made_by.tracking_uri == sqlite_uri
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("here")] == ["here"]


def test_what_nobody_has_is_not_there(sqlite_uri: str, tmp_path: Path) -> None:
    recorded(sqlite_uri, tmp_path / "theirs")
    assert ServerEngines(sqlite_uri).fetch("f" * 64, REQUIRES, tmp_path / "here", pytest.fail) is None
    assert not (tmp_path / "here").exists()


def test_the_newest_is_taken_and_still_names_who_compiled_it(sqlite_uri: str, tmp_path: Path) -> None:
    record, engine = recorded(sqlite_uri, tmp_path / "theirs")
    first = ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "first", pytest.fail)
    assert first is not None
    recorded(sqlite_uri, tmp_path / "mine", "mine", reused=first.made_by, at=engine.at + 1)
    found = ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "second", pytest.fail)
    assert found is not None
    assert found.made_by.model_id != first.made_by.model_id
    assert (found.made_by.study_id, found.made_by.compiled_at) == (record.id, engine.at)
    reused = [model.tags.get(Tag.ENGINE_REUSED) for model in models(sqlite_uri, engine.key)]
    assert sorted(bool(tag) for tag in reused) == [False, True]


def test_an_engine_of_another_kind_of_machine_is_left_alone(sqlite_uri: str, tmp_path: Path) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    said: list[str] = []
    here = {**REQUIRES, "isa": "x86_64 avx2"}
    assert ServerEngines(sqlite_uri).fetch(engine.key, here, tmp_path / "here", said.append) is None
    assert "it needs isa unknown, here is x86_64 avx2" in said[0]
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("path", ["engine/model.bin", "manifest.json"])
def test_a_damaged_engine_is_not_used(sqlite_uri: str, tmp_path: Path, path: str) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    replace_artifact(sqlite_uri, engine.key, tmp_path, path, lambda content: content[:-2] + b"?")
    said: list[str] = []
    assert ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append) is None
    assert path in said[0].replace("the manifest of", "manifest.json")
    assert "is not what was logged" in said[0]
    assert not (tmp_path / "here").exists()


def test_files_that_are_gone_from_the_server_are_damage_too(sqlite_uri: str, tmp_path: Path) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    (model,) = models(sqlite_uri, engine.key)
    Path(model.artifact_location.removeprefix("file://"), "manifest.json").unlink()
    said: list[str] = []
    assert ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append) is None
    assert "cannot download manifest.json" in said[0]


@pytest.mark.parametrize("path", ["engine/../../out", "/etc/passwd", "engine//etc/passwd", "manifest.json"])
def test_a_package_cannot_reach_outside_its_directory(sqlite_uri: str, tmp_path: Path, path: str) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    edit_manifest(sqlite_uri, engine.key, tmp_path, lambda manifest: manifest["files"].update({path: "0" * 64}))
    believe(sqlite_uri, engine.key, tmp_path)
    said: list[str] = []
    assert ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append) is None
    assert "leads out of the package" in said[0]


def test_an_engine_whose_digest_the_server_does_not_know_is_not_used(sqlite_uri: str, tmp_path: Path) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    (model,) = models(sqlite_uri, engine.key)
    MlflowClient(sqlite_uri).delete_logged_model_tag(model.model_id, Tag.MANIFEST_SHA256)
    said: list[str] = []
    assert ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append) is None
    assert "nothing tells what was logged" in said[0]


def test_a_manifest_that_lies_about_its_key_is_not_believed(sqlite_uri: str, tmp_path: Path) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "theirs")
    lie = {"key": "f" * 64}
    edit_manifest(sqlite_uri, engine.key, tmp_path, lambda manifest: manifest["compiled"].update(lie))
    believe(sqlite_uri, engine.key, tmp_path)
    said: list[str] = []
    assert ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append) is None
    assert "its manifest has the key ffff" in said[0]


def test_an_older_whole_engine_serves_where_the_newest_is_damaged(sqlite_uri: str, tmp_path: Path) -> None:
    _, engine = recorded(sqlite_uri, tmp_path / "newer", "newer")
    replace_artifact(sqlite_uri, engine.key, tmp_path, "engine/model.bin", lambda content: content + b"?")
    damaged = models(sqlite_uri, engine.key)[0].model_id
    whole = tmp_path / "whole"
    recorded(sqlite_uri, whole, "whole")
    order = [model.model_id for model in models(sqlite_uri, engine.key)]
    assert damaged in order
    said: list[str] = []
    found = ServerEngines(sqlite_uri).fetch(engine.key, REQUIRES, tmp_path / "here", said.append)
    assert found is not None
    assert found.made_by.study_id == "whole"


def test_a_server_that_is_away_is_asked_once(tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    lane = record.lanes[lane_id(record, "resnet18", "openvino")].lane
    away = ServerEngines("http://127.0.0.1:9")
    with pytest.raises(TrackingError, match="nothing answers there"):
        away.fetch("f" * 64, {}, tmp_path / "here", pytest.fail)
    with journal.Journal(tmp_path / "journal") as log:
        cache = EngineCache(log, record, EngineStore(tmp_path / "engines"), away)
        for number in range(3):
            assert cache.take(lane, f"{number:064}", {}, tmp_path / "target") is None
    (problem,) = journal.read(tmp_path / "journal")
    assert problem["event"] == "cache_problem"
    assert "nothing answers there" in problem["reason"]
    assert list((tmp_path / "engines").iterdir()) == []


def measured(uri: str, home: Path, **options: Any) -> Outcome:
    given = parse(
        {
            "name": "shared",
            "workloads": ["block:mha?width=16"],
            "compilers": [{"name": "fake", "flags": {"at": "compile", "behaviour": "ok"}}],
            "batch_sizes": [1, 2],
            "repetitions": 2,
            "warmup": {"window": 2, "max_seconds": 0.1},
            "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
            "cache": "server",
        }
    )
    return runner.run_study(given, home=home, tracking_uri=uri, experiment=home.parent.name, **options)


def reused(outcome: Outcome) -> dict[tuple[int, ...], bool]:
    return {
        engine.batch_sizes: engine.reused is not None
        for lane in outcome.record.lanes.values()
        for engine in lane.engines
        if lane.lane.compiler == "fake"
    }


@pytest.mark.usefixtures("compilers")
@pytest.mark.usefixtures("fake_compiler")
def test_a_second_machine_compiles_nothing_and_what_is_damaged_is_compiled_there(
    server_uri: str, tmp_path: Path
) -> None:
    """One engine of two is damaged on a real server before a second home asks for both."""
    first = measured(server_uri, tmp_path / "first")
    assert reused(first) == {(1,): False, (2,): False}
    client = MlflowClient(server_uri)
    for engine in (engine for lane in first.record.lanes.values() for engine in lane.engines):
        if engine.batch_sizes == (2,):
            for model in models(server_uri, engine.key):
                (tmp_path / "bad" / "engine").mkdir(parents=True, exist_ok=True)
                (tmp_path / "bad" / "engine" / "spec.json").write_text("{}")
                client.log_model_artifacts(model.model_id, str(tmp_path / "bad"))
    second = measured(server_uri, tmp_path / "second")
    assert reused(second) == {(1,): True, (2,): False}
    assert not second.unrecorded
    for lane in second.record.lanes.values():
        for engine in lane.engines:
            if engine.reused is not None:
                assert engine.reused.study_id == first.record.id
                assert engine.reused.tracking_uri == server_uri
    problems = [event["reason"] for event in journal.read(second.directory) if event["event"] == "cache_problem"]
    assert len(problems) == 1
    assert all("engine/spec.json of engine" in reason for reason in problems)
    assert second.exit_code == 0
