"""``recommend``, ``pull`` and ``promote`` in a study of which the fastest cells cannot rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path, own_studies: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    record = study_record(tmp_path / "study")
    for cell in record.lanes[lane_id(record, "resnet18", "openvino")].cells.values():
        cell.verdict, cell.reason = Verdict.TIMEOUT, "timing took more than 600 s"
    recorder = Recorder(sqlite_uri)
    recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return sqlite_uri


def test_recommend_names_no_winner(recorded: str, cli: Cli) -> None:
    code, out, err = cli("recommend", "--workloads", "resnet18")
    assert (code, err) == (3, "")
    first = out.splitlines()[0]
    assert first.startswith("undecided for resnet18 on xeon: openvino at batch ")
    assert "; and 2 more; could beat" in first
    assert "could beat onnxruntime[opt_level=2] at batch 4" in first
    assert "measure again: mlflow-ngraph benchmark " in first
    assert "/study.yaml --workloads timm:resnet18 --compilers openvino" in first
    assert "mlflow-ngraph engine pull" not in out
    assert "*" not in out
    code, out, _ = cli("recommend", "--workloads", "resnet18", "--json")
    found = json.loads(out)
    assert code == 3
    assert [one["row"]["batch"] for one in found["undecided"][0]["rivals"]] == [4, 2, 1]
    assert not any(row["best"] for row in found["choices"])
    for form in ("markdown", "csv"):
        code, out, _ = cli("recommend", "--workloads", "resnet18", "--format", form)
        assert code == 3
        assert "mlflow-ngraph engine pull" not in out or form == "csv"
    assert cli("recommend", "--workloads", "resnet18", "--compilers", "onnxruntime")[0] == 0


def test_recommend_where_nothing_is_ok(recorded: str, cli: Cli) -> None:
    code, out, _ = cli("recommend", "--workloads", "resnet18", "--compilers", "openvino")
    assert code == 3
    assert "nothing else is ok; measure again:" in out


def test_pull_refuses_unless_that_is_accepted(recorded: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_ngraph.engines.compatibility.incompatibility", lambda manifest: "")
    code, out, _ = cli("engine", "pull", "--workloads", "resnet18")
    assert code == 3
    assert out.startswith("undecided: openvino at batch 4 measured")
    assert "looks best: resnet18 by onnxruntime[opt_level=2], fp32, batch 4" in out
    assert "--accept-undecided brings it nevertheless" in out
    code, out, _ = cli("engine", "pull", "--workloads", "resnet18", "--dry-run", "--json")
    document = json.loads(out)
    assert (code, document["directory"]) == (3, None)
    assert {one["row"]["compiler"] for one in document["answer"]["undecided"]} == {"openvino"}
    code, out, _ = cli("engine", "pull", "--workloads", "resnet18", "--dry-run", "--accept-undecided")
    assert code == 0
    assert out.startswith("undecided: ")


def test_a_rival_that_cannot_run_here_is_none(recorded: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_ngraph.engines.compatibility.incompatibility", lambda manifest: "")
    monkeypatch.setattr(
        "mlflow_ngraph.engines.compatibility.unavailable", lambda name: "not installed" if name == "openvino" else ""
    )
    code, out, _ = cli("engine", "pull", "--workloads", "resnet18", "--dry-run")
    assert code == 0
    assert out.startswith("chosen: resnet18 by onnxruntime[opt_level=2]")


@pytest.mark.usefixtures("taken_as_whole")
def test_promote_refuses_unless_that_is_accepted(recorded: str, cli: Cli) -> None:
    frame = results.load(recorded, workloads=["resnet18"], compilers=["onnxruntime"], batch_sizes=[4])
    asked = ("engine", "promote", frame["model_id"].iloc[0], "--name", "resnet")
    code, out, _ = cli(*asked)
    assert code == 3
    assert "resnet@xeon-champion is not made: resnet18 by onnxruntime[opt_level=2], fp32 is not promoted" in out
    assert "- undecided: openvino at batch 4 measured" in out
    assert "--accept-undecided promotes it nevertheless" in out
    assert not MlflowClient(recorded).search_registered_models()
    code, out, _ = cli(*asked, "--accept-undecided", "--json")
    document = json.loads(out)
    assert (code, document["state"], document["overruled"]) == (0, "promoted", True)
    assert "undecided: openvino at batch 4" in document["description"]
    slowest = frame.assign(model_id=results.load(recorded, compilers=["openvino"])["model_id"].iloc[0])
    assert cli("engine", "promote", slowest["model_id"].iloc[0], "--name", "other", "--accept-undecided")[0] == 3
