"""Two models of one label, and one machine under two profiles, through every verb that reads results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.execute.record import EngineRecord, StudyRecord
from mlflow_ngraph.tracking.description import models
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.ui import answers
from mlflow_ngraph.ui.store import ResultStore
from tests.support.records import study_record

Cli = Callable[..., tuple[int, str, str]]
REFS = {"timm:resnet18": "torch:shop:classifier", "timm:deit_tiny_patch16_224": "onnx:classifier.onnx"}
NAMES = {"classifier (onnx)", "classifier (torch)"}


def of_model(engine: EngineRecord, ref: str) -> EngineRecord:
    """The engine as one that was compiled from another model."""
    place = Path(engine.directory)
    EngineSpec.read(place).model_copy(update={"workload": ref}).write(place)
    return engine.model_copy(update={"files": digest_files(place)})


def alike(record: StudyRecord) -> StudyRecord:
    """The study with two models that are both called classifier."""
    for lane in record.lanes.values():
        lane.lane = replace(lane.lane, workload=REFS[lane.lane.workload], label="classifier")
        lane.engines = [of_model(engine, lane.lane.workload) for engine in lane.engines]
    workloads: dict[str, Mapping[str, Any]] = {
        REFS[ref]: {**materials, "info": {**materials["info"], "ref": REFS[ref], "label": "classifier"}}
        for ref, materials in record.workloads.items()
    }
    return replace(record, workloads=workloads)


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both models in a study; and again, measured on the same machine under another profile."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    for number, device in enumerate(("xeon", "host")):
        record = alike(study_record(tmp_path / device, device=device, study_id=f"quick-{number}"))
        record.started_at += number
        put(sqlite_uri, record, tmp_path / device)
    return sqlite_uri


def put(uri: str, record: StudyRecord, directory: Path) -> None:
    recorder = Recorder(uri)
    recorder.open(record, directory)
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")


def test_no_verb_merges_them(recorded: str, tmp_path: Path, cli: Cli, cli_json: Callable[..., Any]) -> None:
    code, out, err = cli("compare")
    assert code == 0
    assert all(name in out for name in NAMES)
    assert err.count("host and xeon are one machine, shown as host") == 1
    values = cli_json("compare", "--all")["values"]
    assert {value["label"] for value in values} == NAMES
    assert {value["device"] for value in values} == {"host"}
    places = [(value["label"], value["compiler_label"], value["batch"]) for value in values]
    assert len(places) == len(set(places))
    only = cli_json("compare", "--workloads", "classifier (onnx)")["values"]
    assert {value["label"] for value in only} == {"classifier (onnx)"}

    recommended = cli("recommend")[1]
    assert all(f"{name} on host" in recommended for name in NAMES)
    assert {row["label"] for row in cli_json("engine", "list")["engines"]} <= NAMES
    findings = json.dumps(cli_json("results", "findings"))
    assert "classifier (onnx)" in findings
    assert '"classifier"' not in findings

    target = tmp_path / "report"
    code, _, err = cli("results", "report", "quick~1", "--output", str(target))
    assert code == 0, err
    page = (target / "report.md").read_text(encoding="utf-8")
    assert all(name in page for name in NAMES)


def test_the_view_of_a_model_in_mlflow_shows_no_other(recorded: str, tmp_path: Path) -> None:
    record = alike(study_record(tmp_path / "later", study_id="later"))
    (ref,) = [ref for ref in record.workloads if ref.startswith("torch:")]
    record.workloads = {**record.workloads, ref: {**record.workloads[ref], "digest": "0" * 64}}
    put(recorded, record, tmp_path / "later")
    client = MlflowClient(recorded)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = {}
    for number, known in enumerate((alike(study_record(tmp_path / "same")), record)):
        for name, only in models(known).items():
            runs = client.search_runs(experiments, " AND ".join(only))
            found[number, name] = {run.info.run_id for run in runs}
            assert len({(run.data.params["workload"], run.data.tags["ngraph.model_content"]) for run in runs}) == 1
    assert {name for _, name in found} == NAMES
    assert not found[0, "classifier (torch)"] & found[1, "classifier (torch)"]
    assert found[0, "classifier (onnx)"] == found[1, "classifier (onnx)"]


def test_a_cell_is_named_by_whatever_names_its_model(recorded: str, cli: Cli) -> None:
    for name in ("classifier (torch)", "torch:shop:classifier", "Classifier (Torch)"):
        code, out, err = cli("results", "history", f"{name}/openvino/b1")
        assert (code, "classifier (torch)" in out) == (0, True), err
    code, _, err = cli("results", "history", "classifier/identity/b1")
    assert code == 2
    assert "'classifier (torch)/identity/b1'" in err
    assert "'classifier (onnx)/identity/b1'" in err


def test_the_page_does_not_merge_them(recorded: str) -> None:
    store = ResultStore(recorded)
    source = store._server

    def fetch(run_id: str, path: str) -> bytes | None:
        return source.results_without_mlflow(next(run for run in source.study_runs() if run.run_id == run_id))

    found = store.newest(store.studies(), fetch)
    frame = found.cells
    assert {entry["label"] for entry in answers.options(frame)["workloads"]} == NAMES
    assert frame.groupby(["label", "device", "compiler_label", "batch"]).size().max() == 1
    assert "host and xeon are one machine, shown as host" in found.notes


def test_what_a_name_means_is_said_once(recorded: str, cli: Cli) -> None:
    for request in (
        ["results", "gate", "quick"],
        ["results", "gate", "quick", "--devices", "xeon", "--baseline", "quick~1"],
        ["recommend"],
    ):
        err = cli(*request)[2]
        assert err.count("host and xeon are one machine") == 1, err


def test_pull_asks_which_of_them(recorded: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_ngraph.engines.compatibility.incompatibility", lambda manifest: "")
    code, _, err = cli("engine", "pull", "--workloads", "classifier", "--dry-run")
    assert code == 2
    assert "engines of several models fit" in err
    assert all(ref in err for ref in REFS.values())
    for name in NAMES:
        code, out, err = cli("engine", "pull", "--workloads", name, "--dry-run", "--accept-undecided", "--json")
        assert code == 0, err
        chosen = json.loads(out)["answer"]["chosen"]
        assert chosen["label"] == name
        assert chosen["device"] == "host"


@pytest.mark.usefixtures("taken_as_whole")
def test_promote_judges_an_engine_beside_those_of_its_own_model(recorded: str, cli: Cli) -> None:
    frame = results.load(recorded).sort_values("throughput", ascending=False)
    torch, onnx = (
        frame[(frame["label"] == f"classifier ({name})") & (frame["compiler"] != "identity")]
        for name in ("torch", "onnx")
    )
    before = torch[(torch["study_id"] == "quick-0") & (torch["compiler"] == "onnxruntime")].iloc[0]
    code, out, _ = cli(
        "engine", "promote", before["model_id"], "--name", "shop", "--dry-run", "--batch-size", str(before["batch"])
    )
    assert code == 3
    assert "classifier (torch) by onnxruntime[opt_level=2], fp32 is not promoted" in out
    assert "openvino at batch" in out, "it was measured under the other profile, too"
    code, out, err = cli("engine", "promote", torch["model_id"].iloc[0], "--name", "shop", "--alias", "best", "--force")
    assert code == 0, err
    assert "is version 1 now: classifier (torch) by" in out
    code, out, _ = cli("engine", "promote", onnx["model_id"].iloc[0], "--name", "shop", "--alias", "best")
    assert code == 3
    assert "has another workload: torch:shop:classifier, not onnx:classifier.onnx" in out


@pytest.mark.usefixtures("taken_as_whole")
def test_two_flag_sets_of_one_compiler_are_two(
    sqlite_uri: str, tmp_path: Path, cli: Cli, cli_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setattr("mlflow_ngraph.engines.compatibility.incompatibility", lambda manifest: "")
    record = study_record(tmp_path / "study")
    for lane in record.lanes.values():
        if lane.lane.compiler == "openvino":
            label, flags = "onnxruntime[opt_level=1]", {"opt_level": 1}
            lane.lane = replace(lane.lane, compiler="onnxruntime", compiler_label=label, flags=flags)
    put(sqlite_uri, record, tmp_path / "study")
    labels = {"onnxruntime[opt_level=1]", "onnxruntime[opt_level=2]"}
    asked = ("--workloads", "resnet18", "--compilers", "onnxruntime")
    assert {value["compiler_label"] for value in cli_json("compare", "--all", *asked)["values"]} == labels
    assert {row["compiler_label"] for row in cli_json("recommend", *asked)["choices"]} == labels
    code, out, _ = cli(
        "engine", "pull", "--workloads", "resnet18", "--compilers", "onnxruntime[opt_level=2]", "--dry-run"
    )
    assert (code, "resnet18 by onnxruntime[opt_level=2], fp32" in out) == (0, True)
    frame = results.load(sqlite_uri, workloads=["resnet18"], compilers=["onnxruntime"])
    slower = frame.sort_values("throughput")["model_id"].iloc[0]
    code, out, _ = cli("engine", "promote", slower, "--name", "r18", "--dry-run")
    assert code == 3
    assert sum(f"by {label}, fp32 is not promoted" in out for label in labels) == 1
    assert "- undecided" in out or "could beat" in out
