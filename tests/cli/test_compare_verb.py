"""What ``compare`` says beside the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record


@pytest.fixture
def recorded(sqlite_uri: str, tmp_path: Path) -> str:
    """A study whose fastest cell computes something else, with nodes of another that fell back."""
    record = study_record(tmp_path / "study")
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[1]
    cell.verdict, cell.reason, cell.precision_in_force = Verdict.PARITY_FAILED, "relative error 1e-1", "bf16"
    cell = record.lanes[lane_id(record, "resnet18", "onnxruntime")].cells[1]
    cell.flags = {**cell.flags, "fallback_nodes": 2}
    recorder = Recorder(sqlite_uri)
    recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    return sqlite_uri


def test_what_failed_parity_is_left_out_unless_asked_for(recorded: str, cli, cli_json) -> None:
    arguments = ("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--batch-sizes", "1")
    code, out, _ = cli(*arguments)
    assert code == 0
    assert "openvino" not in out
    assert "left out 1 parity_failed (--include or --all shows them)" in out
    assert "precision in force: fp32" in out
    for more in (("--include", "parity_failed"), ("--all",)):
        out = cli(*arguments, *more)[1]
        assert "250 bf16 (parity_failed)" in out
        assert "100 fp32" in out
        assert "precision in force" not in out
        (value,) = [row for row in cli_json(*arguments, *more)["values"] if row["compiler_label"] == "openvino"]
        assert (value["verdict"], value["precision_in_force"]) == ("parity_failed", "bf16")
    assert "250 bf16 (parity_failed)" in cli(*arguments, "--all", "--format", "markdown")[1]
    assert "parity_failed" not in cli(*arguments, "--all", "--format", "csv")[1]


def test_nodes_that_fell_back_are_told_beside_the_number(recorded: str, cli) -> None:
    out = cli("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--batch-sizes", "1,2")[1]
    assert "150 (2 nodes fell back to another provider)" in out
    assert out.count("fell back") == 1


def test_an_unknown_verdict_is_refused(recorded: str, cli) -> None:
    code, _, err = cli("compare", "--tracking-uri", recorded, "--include", "wrong")
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown verdict 'wrong'" in err


def test_the_ids_of_cells_can_be_shown(recorded: str, cli, cli_json) -> None:
    out = cli("compare", "--tracking-uri", recorded, "--workloads", "resnet18", "--rows", "cell", "--columns", "label")[
        1
    ]
    for row in cli_json("compare", "--tracking-uri", recorded, "--workloads", "resnet18")["values"]:
        assert row["cell"] in out
