"""What lands in MLflow, and that it lands once, whatever happens in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient

from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tracking import schema, views
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import CURVE, HEADLINES, Tag
from mlflow_ngraph.tracking.study_run import HANDED_OVER, key_of
from mlflow_ngraph.verdicts import Verdict
from tests.support.recording import PACKAGE, check_once, lane_run, models, runs, small, write
from tests.support.records import BATCHES, START, lane_id, study_record

pytestmark = pytest.mark.long


class Crash(BaseException):
    """The process dies here."""


class DyingClient:
    """A client whose process dies right after its ``calls``-th request was carried out."""

    def __init__(self, client: MlflowClient, calls: int) -> None:
        self._client = client
        self._left = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._left -= 1
            if self._left == 0:
                raise Crash(name)
            return result

        return call


BY_MLFLOW_RUN = {"mlflow.project.entryPoint": "benchmark"}
"""What MLflow says of a run that it makes for a project."""


def hand_over(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as an entry point of this project does."""
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    monkeypatch.setenv(HANDED_OVER, run_id)


def test_a_study_lands_once_even_when_written_twice(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    for _ in range(2):
        recorder = Recorder(sqlite_uri)
        recorder.preflight()
        write(recorder, record, tmp_path / "study")
    check_once(recorder.client, record)
    for run in runs(recorder.client, record, "study"):
        assert run.info.start_time == int(START * 1000)
        assert run.info.end_time == int((START + 600) * 1000)


def test_lane_runs_say_what_was_measured(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri, "edge")
    write(recorder, record, tmp_path / "study")
    client = recorder.client
    run = lane_run(client, record, "resnet18", "onnxruntime")
    assert run.data.params == {
        "device": "xeon",
        "workload": "timm:resnet18",
        "model": "resnet18",
        "family": "ResNet",
        "compiler": "onnxruntime",
        "compiler_label": "onnxruntime[opt_level=2]",
        "precision": "fp32",
        "precision_in_force": "fp32",
        "mode": "sync",
        "threads": "2",
        "transfers": "outside",
        "batch_sizes": "1,2,4",
        "flag.graph": "fused",
        "flag.memory_format": "contiguous",
        "flag.opt_level": "2",
        "flag.streams": "1 (batch 1); 2 (batch 2); 4 (batch 4)",
        "flag.threads": "2",
    }
    for name in CELL_METRICS:
        history = client.get_metric_history(run.info.run_id, CURVE + name)
        assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(BATCHES), name
    assert set(HEADLINES) <= set(run.data.metrics)
    assert run.data.metrics["best_batch"] == 4
    assert run.data.metrics["throughput"] == pytest.approx(4**0.2 * 150)
    assert run.data.metrics["throughput_b1"] == pytest.approx(150)
    assert run.data.metrics["compile_total_s"] == pytest.approx(3 * 3.5)
    tags = run.data.tags
    assert tags[Tag.VERDICT] == "ok"
    assert tags[Tag.FINGERPRINT] == "f1a9c0ffee12"
    assert json.loads(tags[Tag.VERSIONS])["openvino"] == "2025.3.0"
    assert tags[Tag.COLOUR] == schema.colour("xeon", "onnxruntime", "onnxruntime[opt_level=2]")
    assert Tag.REASON not in tags
    assert json.loads(tags[Tag.CELLS])["4"] == f"{tags[Tag.LANE_ID]}-b4"
    assert client.get_experiment(run.info.experiment_id).name == "edge"


def test_what_is_not_ok_is_marked_and_never_a_headline(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    partly = lane_run(recorder.client, record, "deit-t", "onnxruntime")
    assert partly.info.status == "FINISHED"
    assert partly.data.tags[Tag.VERDICT] == "crashed"
    assert json.loads(partly.data.tags[Tag.VERDICTS]) == {"1": "ok", "2": "timeout", "4": "crashed"}
    assert "SIGSEGV" in partly.data.tags[Tag.REASON]
    assert "Fatal: Python error" in partly.data.tags[Tag.NOTE]
    assert partly.data.metrics["best_batch"] == 1
    assert partly.data.metrics["cells_ok"] == 1
    trusted = recorder.client.get_metric_history(partly.info.run_id, "batch/ok")
    assert {point.step: point.value for point in trusted} == {1: 1, 2: 0, 4: 0}
    failed = lane_run(recorder.client, record, "deit-t", "openvino")
    assert failed.info.status == "FAILED"
    assert failed.data.tags[Tag.VERDICT] == "unsupported"
    assert failed.data.params["flag.opt_level"] == "2"
    assert "throughput" not in failed.data.metrics
    assert r"scaled \| dot" in failed.data.tags[Tag.NOTE]


def test_study_run_carries_files_params_and_note(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    (run,) = runs(recorder.client, record, "study")
    assert run.data.params["study.workloads"] == "timm:resnet18,timm:deit_tiny_patch16_224"
    assert run.data.params["study.compilers"] == "identity,onnxruntime[opt_level=2],openvino"
    assert run.data.params["study.repetitions"] == "20"
    assert "study.warmup.window" not in run.data.params, "the study did not say it"
    assert run.data.tags[Tag.VERDICT] == "13 of 18 ok"
    assert run.data.metrics["cells_total"] == 18
    assert run.data.metrics["cells_ok"] == 13
    assert run.data.metrics["duration_s"] == 600
    assert "| resnet18 | 1 | **openvino** | **2.5 [2.42, 2.58]** | **250 [245, 255]** |" in run.data.tags[Tag.NOTE]
    home = Path(recorder.client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    table = pd.read_parquet(home / "results.parquet")
    assert len(table) == 18
    assert set(table["run_id"]) == {run.info.run_id}
    assert table["lane_run_id"].notna().all()
    assert table["model_id"].notna().sum() == 15
    assert len(pd.read_csv(home / "results.csv")) == 18
    samples = pd.read_parquet(home / "samples.parquet")
    assert len(samples) == 14 * 20
    assert samples.groupby("cell")["repetition"].max().eq(19).all()
    assert yaml.safe_load((home / "study.yaml").read_text())["repetitions"] == 20
    assert json.loads((home / "fingerprint.json").read_text()) == record.fingerprint
    assert (home / "journal.jsonl").read_text() == (tmp_path / "study/journal.jsonl").read_text()


def test_a_large_study_has_a_note_that_fits(sqlite_uri: str, tmp_path: Path) -> None:
    record = small(study_record(tmp_path / "study"))
    for cell in record.lanes[lane_id(record, "deit-t", "openvino")].cells.values():
        cell.reason = cell.stderr_tail = "x" * 9000
    batches = range(1, 200)
    lane = record.lanes[lane_id(record, "resnet18", "identity")]
    lane.cells = dict.fromkeys(batches, lane.cells[1])
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    (run,) = runs(recorder.client, record, "study")
    assert len(run.data.tags[Tag.NOTE]) <= 8000
    assert "more rows in the artifact summary.md" in run.data.tags[Tag.NOTE]
    failed = lane_run(recorder.client, record, "deit-t", "openvino")
    assert failed.data.tags[Tag.REASON].endswith("[cut from 9000 characters]")


def test_engines_are_models_with_manifest_and_files(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    engine = record.lanes[lane_id(record, "resnet18", "openvino")].engines[1]
    (model,) = [model for model in models(recorder.client, record) if model.tags[Tag.ENGINE_ID] == engine.id]
    assert model.name == "resnet18-openvino-fp32-b2"
    assert model.params["flag.streams"] == "2"
    assert model.params["batch_sizes"] == "2"
    assert model.tags[Tag.VERDICT] == "ok"
    root = Path(recorder.client._tracking_client.store.get_logged_model(model.model_id).artifact_location)
    assert (root / "engine/nested/meta.json").read_bytes() == engine.id.encode()
    manifest = json.loads((root / "manifest.json").read_text())
    assert manifest["schema_version"] == 2
    own = {path: digest for path, digest in manifest["files"].items() if path.startswith("engine/")}
    assert own == {f"engine/{path}": digest for path, digest in engine.files.items()}
    assert {path.partition("/")[0] for path in manifest["files"]} == PACKAGE - {"manifest.json", "manifest.json.sha256"}
    assert open_package(root, model.tags[Tag.MANIFEST_SHA256]).manifest.origin.run_id == model.source_run_id
    assert manifest["flags"]["streams"] == 2
    assert manifest["spec"]["inputs"][0]["shape"] == ["batch", 3, 224, 224]
    assert manifest["origin"]["fingerprint"]["digest"] == "f1a9c0ffee12"
    (figures,) = manifest["figures"]
    assert figures["metrics"]["speedup"] == 2.5
    metrics = {
        (metric.key, metric.step): metric.value for metric in recorder.client.get_logged_model(model.model_id).metrics
    }
    assert metrics["batch/speedup", 2] == 2.5
    assert ("batch/speedup", 4) not in metrics


def test_an_engine_that_changed_on_disk_or_is_of_another_version_is_not_logged(sqlite_uri: str, tmp_path: Path) -> None:
    record = small(study_record(tmp_path / "study"))
    engines = record.lanes[lane_id(record, "resnet18", "identity")].engines
    Path(engines[0].directory, "model.bin").write_bytes(b"other")
    old = shutil.copytree(engines[0].directory, tmp_path / "old", ignore=shutil.ignore_patterns("spec.json"))
    engines.append(engines[0].model_copy(update={"id": "old", "directory": str(old), "files": digest_files(old)}))
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    assert models(recorder.client, record) == []
    run = lane_run(recorder.client, record, "resnet18", "identity")
    assert "model.bin has changed since it was written" in run.data.tags[Tag.ENGINE_PROBLEM]
    assert "spec.json is not readable: No such file or directory; compile" in run.data.tags[Tag.ENGINE_PROBLEM]
    assert run.data.metrics["speedup"] == 1


def test_a_crash_after_a_request_leaves_nothing_double_or_half(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "supported", lambda version: True)
    crashes = 0
    # Not after each: the steps have nothing in common with what is repeated for every lane and engine.
    for last in accumulate(cycle((1, 2, 3))):
        record = small(study_record(tmp_path / "study", study_id=f"crash-{crashes}"))
        recorder = Recorder(sqlite_uri)
        recorder.client = DyingClient(MlflowClient(sqlite_uri), last)
        try:
            write(recorder, record, tmp_path / "study")
        except Crash:
            crashes += 1
        else:
            break
        again = Recorder(sqlite_uri)
        write(again, record, tmp_path / "study")
        check_once(again.client, record)
    assert crashes > 12


def test_opening_again_ends_what_a_killed_process_left_running(sqlite_uri: str, tmp_path: Path) -> None:
    record = small(study_record(tmp_path / "study"))
    recorder = Recorder(sqlite_uri)
    study = recorder.open(record, tmp_path / "study")
    experiment_id = recorder.place.experiment_id
    tags = {Tag.STUDY_ID: record.id, Tag.KIND: "lane", Tag.LANE_ID: "gone"}
    foreign = recorder.client.create_run(experiment_id, tags=tags).info.run_id
    zombie = recorder.client.create_run(experiment_id, tags={**tags, Tag.RECORD: key_of(record, experiment_id)})
    again = Recorder(sqlite_uri)
    assert again.open(record, tmp_path / "study") == study
    assert again.client.get_run(zombie.info.run_id).info.status == "KILLED"
    assert again.client.get_run(foreign).info.status == "RUNNING", "it is of another record, whatever its tags say"
    again.close(record, "KILLED")
    assert again.client.get_run(study).info.status == "KILLED"


def test_a_lane_that_was_measured_further_gets_a_run_in_place_of_the_former(sqlite_uri: str, tmp_path: Path) -> None:
    record = small(study_record(tmp_path / "study"))
    key = lane_id(record, "resnet18", "identity")
    last = record.lanes[key].cells.pop(4)
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study", "KILLED")
    first = lane_run(recorder.client, record, "resnet18", "identity")
    assert first.data.tags[Tag.COMPLETE] == "false"
    record.lanes[key].cells[4] = last
    write(Recorder(sqlite_uri), record, tmp_path / "study")
    check_once(recorder.client, record)
    second = lane_run(recorder.client, record, "resnet18", "identity")
    assert second.info.run_id != first.info.run_id
    assert second.data.tags[Tag.COMPLETE] == "true"


def test_resumed_in_another_run_the_lanes_move(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = small(study_record(tmp_path / "study"))
    client = MlflowClient(sqlite_uri)
    experiment = client.create_experiment("project")
    first, second = (client.create_run(experiment, tags=BY_MLFLOW_RUN).info.run_id for _ in range(2))
    hand_over(first, monkeypatch)
    killed = Recorder(sqlite_uri)
    assert killed.open(record, tmp_path / "study") == first
    done = killed.record_lane(record, next(iter(record.lanes))).run_id
    hand_over(second, monkeypatch)
    taken = Recorder(sqlite_uri)
    write(taken, record, tmp_path / "study")
    check_once(client, record)
    assert client.get_run(done).data.tags[Tag.PARENT] == second
    former = client.get_run(first)
    assert former.info.status == "KILLED"
    assert former.data.tags[Tag.RESUMED_BY] == second
    monkeypatch.delenv("MLFLOW_RUN_ID")
    monkeypatch.delenv(HANDED_OVER)
    record.recorded = taken.place
    assert Recorder(sqlite_uri).open(record, tmp_path / "study") == second


def test_two_studies_in_one_project_run_do_not_share_it(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(sqlite_uri)
    surrounding = client.create_run(client.create_experiment("project"), tags=BY_MLFLOW_RUN).info.run_id
    hand_over(surrounding, monkeypatch)
    one, two = (small(study_record(tmp_path / name, study_id=name)) for name in ("one", "two"))
    assert Recorder(sqlite_uri).open(one, tmp_path / "one") == surrounding
    other = Recorder(sqlite_uri).open(two, tmp_path / "two")
    assert other != surrounding
    assert client.get_run(other).data.tags[Tag.PARENT] == surrounding


@pytest.mark.parametrize("theirs", ["training", "another project"])
def test_a_run_that_is_not_ours_is_not_written_into(
    theirs: str, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one's own training, nor that of a project of one's own that measures with ours."""
    record = small(study_record(tmp_path / "study"))
    client = MlflowClient(sqlite_uri)
    experiment = client.create_experiment("mine")
    tags = BY_MLFLOW_RUN if theirs == "another project" else {"mlflow.note.content": "my training"}
    run_id = client.create_run(experiment, tags=tags).info.run_id
    client.log_param(run_id, "lr", "0.1")
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    before = client.get_run(run_id).to_dictionary()
    for _ in range(2):  # and again, where the study has a run of its own already
        write(Recorder(sqlite_uri), record, tmp_path / "study")
        assert client.get_run(run_id).to_dictionary() == before
    check_once(client, record)
    (study,) = client.search_runs([experiment], f"tags.`{Tag.KIND}` = 'study'")
    assert study.data.tags[Tag.PARENT] == run_id
    assert (study.info.status, study.info.experiment_id) == ("FINISHED", experiment)


def test_below_a_run_that_is_not_ours_another_experiment_may_be_chosen(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run(client.create_experiment("mine")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    recorder = Recorder(sqlite_uri, "other")
    study = client.get_run(recorder.open(small(study_record(tmp_path / "study")), tmp_path / "study"))
    assert client.get_experiment(study.info.experiment_id).name == "other"
    assert study.data.tags[Tag.PARENT] == run_id


def test_where_names_what_to_open(sqlite_uri: str, tmp_path: Path) -> None:
    record = small(study_record(tmp_path / "study"))
    recorder = Recorder(sqlite_uri)
    write(recorder, record, tmp_path / "study")
    where = recorder.where()
    assert where["experiment"] == "ngraph"
    assert where["ui"] == f"mlflow server --app-name ngraph --backend-store-uri {sqlite_uri}"
    assert where["run_id"] == runs(recorder.client, record, "study")[0].info.run_id
    assert not any("//127" in place for place in where.values()), "no server runs"


def test_the_description_begins_with_the_answer_and_ends_with_filters_that_find(
    sqlite_uri: str, tmp_path: Path
) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri)
    recorder.open(record, tmp_path / "study")
    for key in record.lanes:
        recorder.record_lane(record, key)
    recorder.close(record, "FINISHED", ["resnet18: openvino", "deit-t: onnxruntime"])
    (run,) = runs(recorder.client, record, "study")
    note = run.data.tags[Tag.NOTE]
    assert note.startswith("- resnet18: openvino\n- deit-t: onnxruntime\n\nCharts: [resnet18](#/experiments/")
    assert "workflowType=machine_learning" in note
    filters = note.partition("```text\n")[2].partition("\n```")[0].splitlines()
    found = [recorder.client.search_runs([run.info.experiment_id], text) for text in filters]
    assert filters[:2] == ["metrics.speedup > 2", "params.model = 'resnet18'"]
    assert all(found[:2]), filters
    assert {one.data.params["model"] for one in found[1]} == {"resnet18"}


@pytest.mark.parametrize("variable", ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"])
def test_the_experiment_of_the_environment_is_respected(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    record = small(study_record(tmp_path / "study"))
    experiment = MlflowClient(sqlite_uri).create_experiment("team")
    monkeypatch.setenv(variable, experiment if variable.endswith("ID") else "team")
    recorder = Recorder(sqlite_uri)
    recorder.preflight()
    run = recorder.open(record, tmp_path / "study")
    assert recorder.client.get_run(run).info.experiment_id == experiment
    monkeypatch.delenv(variable)
    record.recorded = recorder.place
    assert Recorder(sqlite_uri).open(record, tmp_path / "study") == run


def test_verdicts_from_best_to_worst_are_all_there() -> None:
    from mlflow_ngraph.tracking.schema import SEVERITY

    assert set(SEVERITY) == set(Verdict)
