"""Names of a table that was read: two models are never one, one machine is never two."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mlflow_ngraph.analysis.compare import compare, latest
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.tables.distinct import distinct, notes
from mlflow_ngraph_report.prepared import prepare
from tests.support.tidy import cells

EPYC = "AMD EPYC 7B13"


def table(**columns: Any) -> pd.DataFrame:
    return distinct(cells(**columns))


def two_models() -> pd.DataFrame:
    workloads = ["torch:m:classifier", "torch:m:classifier", "onnx:classifier.onnx", "onnx:classifier.onnx"]
    compilers = ["identity", "openvino"] * 2
    return table(
        workload=workloads,
        label="classifier",
        compiler=compilers,
        compiler_label=compilers,
        throughput=[64, 472, 70, 571],
    )


def test_two_models_of_one_label_are_two_rows() -> None:
    shown = compare(two_models(), rows=("label",), columns=("compiler_label",)).table
    assert shown.to_dict("index") == {
        "classifier (onnx)": {"identity": 70, "openvino": 571},
        "classifier (torch)": {"identity": 64, "openvino": 472},
    }


def test_two_flag_sets_of_one_compiler_are_two_columns() -> None:
    labels = ["openvino", "openvino[performance_hint=throughput]"]
    frame = table(compiler="openvino", compiler_label=labels, throughput=[100, 120])
    shown = compare(frame, rows=("label",), columns=("compiler_label",)).table
    assert shown.to_dict("index") == {"resnet18": dict(zip(labels, [100, 120], strict=True))}
    assert set(prepare(frame).counted["series"]) == set(labels)


def test_a_filter_takes_the_name_the_label_and_the_reference() -> None:
    frame = two_models()
    for named, count in (("classifier", 4), ("classifier (onnx)", 2), ("onnx:classifier.onnx", 2)):
        selection = Selection(workloads=(named,))
        selection.check(frame)
        assert len(selection.of(frame)) == count, named


def test_a_machine_under_two_profiles_is_one_whose_newest_figure_counts() -> None:
    frame = table(device=["xeon", "host"], throughput=[100.0, 90.0], started_at=[1e9, 2e9], processor=EPYC)
    assert set(frame["device"]) == {"host"}
    assert list(frame["profile"]) == ["xeon", "host"]
    assert list(latest(frame)["throughput"]) == [90.0]
    assert list(notes(frame)) == [
        "host and xeon are one machine, shown as host",
        "xeon is no Xeon but AMD EPYC 7B13: its figures are those of this processor",
    ]
    for named in ("host", "xeon"):
        assert len(Selection(devices=(named,)).of(frame)) == 2


def test_machines_of_one_profile_are_told_apart() -> None:
    frame = table(device="host", fingerprint=["aaaaaaaa", "bbbbbbbb"], throughput=[100.0, 90.0])
    assert list(frame["device"]) == ["host (aaaaaa)", "host (bbbbbb)"]
    assert len(latest(frame)) == 2
    assert len(Selection(devices=("host",)).of(frame)) == 2
    assert len(Selection(devices=("host (aaaaaa)",)).of(frame)) == 1
    assert list(notes(frame)) == []


def test_processor_and_accelerator_of_one_machine_are_two_devices() -> None:
    frame = table(device=["host", "gpu"], throughput=[100.0, 900.0])
    assert list(frame["device"]) == ["host", "gpu"]
    assert len(latest(frame)) == 2


def test_a_cell_that_left_a_race_still_names_its_rival() -> None:
    frame = cells(device=["xeon", "xeon", "host"], batch=[1, 2, 1], started_at=[1e9, 1e9, 2e9])
    frame["beaten_by"] = [None, frame["cell"][0], None]
    named = distinct(frame)
    assert named["cell"][0] == named["cell"][2]
    assert named["beaten_by"][1] == named["cell"][0]
