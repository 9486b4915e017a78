"""The final table."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph.tables.remarks import fallback_nodes
from mlflow_ngraph.tables.sheet import fitting, markdown
from mlflow_ngraph.tables.summary import sheet, summary_rows, wide_intervals
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record
from tests.support.specs import maker


def test_rows_are_sorted_by_speed_up_with_the_rest_last(tmp_path: Path) -> None:
    rows = summary_rows(study_record(tmp_path))
    assert len(rows) == 18
    assert [(row.workload, row.batch) for row in rows[::3]] == [
        *(("resnet18", batch) for batch in (1, 2, 4)),
        *(("deit-t", batch) for batch in (1, 2, 4)),
    ]
    assert [row.compiler for row in rows[:3]] == ["openvino", "onnxruntime[opt_level=2]", "identity"]
    steady = rows[12:15]
    assert [row.verdict for row in steady] == [Verdict.OK, Verdict.TIMEOUT, Verdict.UNSUPPORTED]


def test_only_a_trustworthy_cell_is_the_best(tmp_path: Path) -> None:
    best = [row for row in summary_rows(study_record(tmp_path)) if row.best]
    assert [(row.workload, row.batch, row.compiler.partition("[")[0]) for row in best] == [
        ("resnet18", 1, "openvino"),
        ("resnet18", 2, "openvino"),
        ("resnet18", 4, "openvino"),
        ("deit-t", 1, "onnxruntime"),
        ("deit-t", 2, "identity"),
        ("deit-t", 4, "identity"),
    ]


def test_markdown_shows_intervals_precision_and_verdicts(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes[lane_id(record, "resnet18", "openvino")].cells[1].precision_in_force = "bf16"
    lines = markdown(sheet(record)).splitlines()
    assert lines[2] == (
        "| resnet18 | 1 | **openvino** | bf16 (asked: fp32) | **2.5 [2.42, 2.58]** | **250 [245, 255]** | 4 | 4.4 | 96 | 3.5 "
        "| 1.000000 | ok |"
    )
    assert lines[19].endswith("| unsupported ¹ |")
    assert r"- ¹ no conversion for operator aten::scaled \| dot (3 cells)" in lines
    assert len({line.replace(r"\|", "").count("|") for line in lines[:20]}) == 1


def test_markdown_fits(tmp_path: Path) -> None:
    short = fitting(sheet(study_record(tmp_path)), 1000, "elsewhere")
    shown = sum(line.startswith(("| resnet18", "| deit-t")) for line in short.splitlines())
    assert 800 < len(short) <= 1000
    assert f"{18 - shown} more rows elsewhere" in short


@pytest.mark.parametrize("verdict", [Verdict.PARITY_FAILED, Verdict.TIMEOUT])
def test_a_wrong_or_unfinished_cell_keeps_its_numbers_and_is_last(verdict: Verdict, tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes[lane_id(record, "resnet18", "openvino")].cells[1].verdict = verdict
    rows = [row for row in summary_rows(record) if (row.workload, row.batch) == ("resnet18", 1)]
    assert [(row.compiler, row.best) for row in rows] == [
        ("onnxruntime[opt_level=2]", True),
        ("identity", False),
        ("openvino", False),
    ]
    assert rows[-1].throughput is not None


def test_nodes_that_fell_back_are_marked(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    for batch, nodes in ((1, 1), (2, 3), (4, 0)):
        cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[batch]
        cell.flags = {**cell.flags, "fallback_nodes": nodes}
    rows = [row for row in summary_rows(record) if (row.workload, row.compiler) == ("resnet18", "openvino")]
    assert [row.fallback_nodes for row in rows] == [1, 3, 0]
    lines = markdown(sheet(record)).splitlines()
    ends = [line.rpartition(" | ")[2] for line in lines if line.startswith("| resnet18") and "openvino" in line]
    assert ends == ["ok ¹ |", "ok ² |", "ok |"]
    assert {"- ¹ 1 node fell back to another provider", "- ² 3 nodes fell back to another provider"} < set(lines)


@pytest.mark.parametrize("said", ["torch:os:system", "3", True, 2.5, None, [1], {}])
def test_a_flag_that_counts_no_nodes_says_of_none_that_they_fell_back(said: object) -> None:
    assert fallback_nodes({"fallback_nodes": said}) == 0


def test_a_row_names_its_cell(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    cells = {cell.id for lane in record.lanes.values() for cell in lane.cells.values()}
    assert {row.cell for row in summary_rows(record)} == cells


def test_compile_seconds_of_another_study_are_marked(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    lane = record.lanes[lane_id(record, "resnet18", "openvino")]
    lane.engines = [engine.model_copy(update={"reused": maker(study_id="theirs")}) for engine in lane.engines]
    rows = [row for row in summary_rows(record) if row.compile_total_s is not None and row.workload == "resnet18"]
    assert {row.compiler: row.compiled_by for row in rows}["openvino"] == "theirs"
    assert {row.compile_text for row in rows if row.compiler == "openvino"} == {"3.5 (reused)"}
    assert {row.compile_text for row in rows if row.compiler != "openvino"} == {"3.5"}
    assert "| 3.5 (reused) |" in markdown(sheet(record))


def test_how_far_intervals_reach_is_said_once(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    assert wide_intervals(record) == "", "nothing was wanted of them"
    record.study = {**record.study, "repetitions": "auto"}
    assert wide_intervals(record) == "intervals of throughput: wanted ± 1 %, reached ± 2 % in 13 cells"
    record.lanes[lane_id(record, "resnet18", "openvino")].cells[1].metrics["throughput_ci_high"] *= 1.1
    record.lanes[lane_id(record, "resnet18", "openvino")].cells[2].metrics["throughput_ci_low"] = float("nan")
    assert wide_intervals(record).endswith("reached ± 2 to 7 % in 12 cells, 1 cell has no interval")
    record.study = {**record.study, "adaptive": {**record.study["adaptive"], "within": 0.1}}
    assert wide_intervals(record).endswith("wanted ± 10 %, 1 cell has no interval")


def test_rounds_that_make_the_median_contradict_the_speed_up_are_told(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[1]
    assert "p50, the median" not in markdown(sheet(record))
    cell.metrics["latency_p50_ms"] = 4e3 / cell.metrics["throughput"]
    shown = markdown(sheet(record))
    assert shown.count("p50, the median of all calls, contradicts samples/s and speed-up") == 1
