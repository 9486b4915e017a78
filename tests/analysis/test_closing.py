"""The last lines of a study: an answer in words, and how sure it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.cli.benchmark import show_outcome
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import BATCHES, lane_id, study_record


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    """On the first workload OpenVINO is best; on the second it has no engine, and ONNX Runtime was unsteady at batch 2."""
    return study_record(tmp_path)


def test_a_workload_has_a_sentence_with_figure_and_speedup_and_their_intervals(record: StudyRecord) -> None:
    first, _ = answers(record)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    figures = cell.metrics
    throughput = f"{figures['throughput']:.3g} samples/s [{figures['throughput_ci_low']:.3g}, "
    assert first.startswith("resnet18 on xeon: openvino, 2.50 [2.4")
    assert f" times eager at batch 4 ({throughput}" in first
    assert first.endswith("; 2.50 at batch 1, 2.50 at batch 2")


def lose(record: StudyRecord, label: str, compiler: str, verdict: Verdict = Verdict.CRASHED) -> None:
    for batch in BATCHES:
        cell = record.lanes[lane_id(record, label, compiler)].cells[batch]
        cell.verdict, cell.reason, cell.metrics = verdict, "signal 11", {}


def test_where_eager_execution_is_best_it_says_so(record: StudyRecord) -> None:
    for compiler in ("onnxruntime", "openvino"):
        lose(record, "deit-t", compiler)
    assert answers(record)[1].startswith("deit-t on xeon: identity at batch 4 (")
    assert "; no compiler was faster than eager execution" in answers(record)[1]


def test_without_a_measured_cell_there_is_no_answer(record: StudyRecord) -> None:
    for compiler in ("identity", "onnxruntime", "openvino"):
        lose(record, "deit-t", compiler)
    assert answers(record)[1] == "deit-t on xeon: no answer: of 9 cells 9 crashed"
    for compiler in ("identity", "onnxruntime", "openvino"):
        lose(record, "resnet18", compiler, Verdict.TIMEOUT)
    assert len(answers(record)) == 1
    assert answers(record)[0].startswith("no answer: none of these 18 cells has throughput")


def test_what_has_no_interval_is_said_without(record: StudyRecord) -> None:
    best = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    for name in list(best.metrics):
        if name.startswith("speedup_"):
            del best.metrics[name]
    assert "openvino, 2.50 (no interval) times eager at batch 4 (" in answers(record)[0]


def test_a_figure_without_an_interval_may_be_the_best(record: StudyRecord, own_studies: Path) -> None:
    best = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    for name in list(best.metrics):
        if name.startswith("throughput_"):
            del best.metrics[name]
    best.log_medians = {}
    first = answers(record)[0]
    assert first.startswith("resnet18 on xeon: openvino, 2.50 [")
    assert "times eager at batch 2" in first
    assert "; its batch size is undecided: openvino at batch 4 measured" in first
    assert first.partition("could be better; ")[2].startswith(
        f"measure again: mlflow-ngraph benchmark {own_studies}/{record.id}/study.yaml "
    )


def test_what_is_as_good_is_named(record: StudyRecord) -> None:
    one, two = (
        record.lanes[lane_id(record, "resnet18", name)].cells[4].metrics for name in ("openvino", "onnxruntime")
    )
    two.update({name: value for name, value in one.items() if name.startswith(("throughput", "speedup"))})
    either = "either of onnxruntime[opt_level=2] and openvino (within 3 %): onnxruntime[opt_level=2], 2.50"
    assert either in answers(record)[0]
    two["engine_size_mb"] = 2 * one["engine_size_mb"]
    assert "(within 3 %): openvino, the smaller engine, 2.50" in answers(record)[0]


def test_they_are_the_last_lines(record: StudyRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(record, tmp_path, {"study_run": "http://here"})
    show_outcome(outcome, as_json=False)
    assert capsys.readouterr().out.splitlines()[-2:] == answers(record)
    show_outcome(outcome, as_json=True)
    assert json.loads(capsys.readouterr().out)["answers"] == answers(record)
