"""The page that says which compiler does which model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.support.matrix import markdown, merged
from mlflow_ngraph.execute.record import StudyRecord
from tests.support.records import lane_id, study_record

CPU = {
    "vendor": "GenuineIntel",
    "model": "Xeon",
    "family": "6",
    "model_number": "143",
    "stepping": "8",
    "isa": ["avx2", "amx_bf16"],
    "sockets": 1,
    "cores": 2,
    "threads": 4,
}


def record(directory: Path) -> StudyRecord:
    found = study_record(directory)
    found.fingerprint = {"hardware": {"cpu": CPU, "board": "", "memory_gib": 24, "gpus": []}}
    return found


def page(*records: StudyRecord) -> list[str]:
    return markdown(records, "Compiler matrix", "python benchmarks/compiler_matrix.py").splitlines()


def test_verdicts_errors_and_reasons(tmp_path: Path) -> None:
    lines = page(record(tmp_path))
    assert lines[0] == "# Compiler matrix"
    assert "Made by `python benchmarks/compiler_matrix.py`; not written by hand." in lines
    assert "18 cells: 13 ok, 3 unsupported, 1 timeout, 1 crashed. Batch sizes 1, 2, 4." in lines
    assert "| model | family | batch | identity | onnxruntime[opt_level=2] | openvino |" in lines
    assert "| resnet18 | ResNet | 1 | ok 2.0e-06 | ok 2.0e-06 | ok 2.0e-06 |" in lines
    assert "| deit-t | DeiT | 4 | ok 2.0e-06 | **crashed ³** | **unsupported ¹** |" in lines
    assert r"- ¹ openvino: no conversion for operator aten::scaled \| dot (3 cells)" in lines
    assert "- ³ onnxruntime[opt_level=2]: signal 11 (SIGSEGV) while loading the engine" in lines
    assert sum(line.startswith("- ⁴") for line in lines) == 0
    assert lines[-1].startswith("Measured on 2025-10-09 on ")
    assert "(avx2 amx_bf16), with python 3.11.7, torch 2.13.0, onnxruntime 1.23.0, openvino 2025.3.0." in lines[-1]


def test_what_is_allowed_stands_below_what_was_found(tmp_path: Path) -> None:
    text = " ".join(page(record(tmp_path)))
    assert "a relative error of 0.0001 and a cosine similarity of 1 − 1e-08; the smallest found is 1 − 1.0e-07." in text


def test_one_batch_size_takes_no_column(tmp_path: Path) -> None:
    one = record(tmp_path)
    for key, lane in one.lanes.items():
        one.lanes[key] = replace(lane, lane=replace(lane.lane, batch_sizes=(1,)), cells={1: lane.cells[1]})
    lines = page(one)
    assert "| model | family | identity | onnxruntime[opt_level=2] | openvino |" in lines
    assert "6 cells: 5 ok, 1 unsupported. Batch size 1." in lines


def test_a_compiler_that_names_itself_is_not_named_twice(tmp_path: Path) -> None:
    one = record(tmp_path)
    for cell in one.lanes[lane_id(one, "deit-t", "openvino")].cells.values():
        cell.reason = "openvino: cannot"
    assert "- ¹ openvino: cannot (3 cells)" in page(one)


def test_what_is_different_about_an_ok_cell_is_said(tmp_path: Path) -> None:
    one = record(tmp_path)
    cells = one.lanes[lane_id(one, "resnet18", "openvino")].cells
    cells[1].precision_in_force = "bf16"
    cells[2].flags = {"fallback_nodes": 2}
    lines = page(one)
    assert "| resnet18 | ResNet | 1 | ok 2.0e-06 | ok 2.0e-06 | ok 2.0e-06, bf16 |" in lines
    assert any(line.endswith("| ok 2.0e-06, 2 nodes fell back to another provider |") for line in lines)


def test_a_study_that_goes_on_has_gaps_and_each_precision_a_section(tmp_path: Path) -> None:
    one = record(tmp_path)
    key = lane_id(one, "resnet18", "openvino")
    del one.lanes[key].cells[4]
    other = lane_id(one, "deit-t", "openvino")
    one.lanes[other] = replace(one.lanes[other], lane=replace(one.lanes[other].lane, precision="bf16"))
    lines = page(one)
    assert "15 cells: 12 ok, 1 not measured, 1 timeout, 1 crashed. Batch sizes 1, 2, 4." in lines
    assert lines.index("## fp32") < lines.index("## bf16")
    assert "| deit-t | DeiT | 4 | **unsupported ¹** |" in lines
    assert sum(line.startswith("Measured on ") for line in lines) == 1


def test_parts_of_a_matrix_become_one_table(tmp_path: Path) -> None:
    whole = record(tmp_path)
    labels = [lane.lane.label for lane in whole.lanes.values()]
    parts = [
        replace(whole, lanes={key: lane for key, lane in whole.lanes.items() if lane.lane.label == label})
        for label in dict.fromkeys(labels)
    ]
    (one,) = merged(parts)
    assert page(one) == page(whole)
    again = replace(parts[0], lanes=dict(list(parts[0].lanes.items())[:1]))
    assert merged([*parts, again])[0].lanes == whole.lanes
    elsewhere = replace(parts[1], fingerprint={**whole.fingerprint, "digest": "other"})
    assert len(merged([parts[0], elsewhere])) == 2
