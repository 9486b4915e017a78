"""Pivots of the newest trustworthy results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mlflow_ngraph.analysis import results
from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record

ORT = "onnxruntime[opt_level=2]"


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    devices = (("xeon", "one"), ("orin", "two"))
    return pd.concat(
        [results.from_record(study_record(tmp_path / name, study_id=name, device=device)) for device, name in devices],
        ignore_index=True,
    )


def test_workloads_against_devices_and_compilers(frame: pd.DataFrame) -> None:
    table = compare(frame)
    assert table.loc[("resnet18", 1), ("orin", "openvino")] == pytest.approx(250)
    assert pd.isna(table.loc[("deit-t", 2), ("xeon", ORT)])
    assert table.attrs["left_out"] == {"unsupported": 6, "unstable": 2, "crashed": 2}
    assert table.attrs["cells"] == 26
    assert table.attrs["unit"] == "samples/s"


def test_all_verdicts_on_request(frame: pd.DataFrame) -> None:
    table = compare(frame, include=[str(verdict) for verdict in Verdict])
    assert table.loc[("deit-t", 2), ("xeon", ORT)] == pytest.approx(2**0.2 * 150)
    assert table.attrs["left_out"] == {}


def wrong(tmp_path: Path, verdict: Verdict) -> pd.DataFrame:
    """The fastest cell of ResNet-18 at batch 4 has numbers and a verdict that is not ok."""
    record = study_record(tmp_path / verdict)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    cell.verdict, cell.reason, cell.precision_in_force = verdict, "for a reason", "bf16"
    return results.from_record(record)


@pytest.mark.parametrize("verdict", [Verdict.PARITY_FAILED, Verdict.UNSTABLE])
def test_a_cell_that_is_not_ok_keeps_its_numbers_and_enters_no_ranking(verdict: Verdict, tmp_path: Path) -> None:
    frame = wrong(tmp_path, verdict)
    cell = frame[(frame["label"] == "resnet18") & (frame["compiler"] == "openvino") & (frame["batch"] == 4)].iloc[0]
    assert cell["throughput"] > 0
    assert cell["parity_cosine"] > 0
    ranked = compare(frame, rows=["label"], columns=["batch"], workloads=["resnet18"])
    assert ranked.loc["resnet18", 4] == pytest.approx(4**0.2 * 150)  # ONNX Runtime is the fastest of those that are ok
    assert ranked.attrs["left_out"] == {str(verdict): 1}
    asked = compare(frame, rows=["label"], columns=["compiler"], batch_sizes=[4], include=[str(verdict)])
    assert asked.loc["resnet18", "openvino"] == pytest.approx(cell["throughput"])
    (value,) = [found for found in asked.attrs["values"] if found["cell"] == cell["cell"]]
    assert (value["verdict"], value["precision_in_force"]) == (str(verdict), "bf16")


def test_a_doubtful_number_does_not_hide_a_good_one(tmp_path: Path) -> None:
    frame = wrong(tmp_path, Verdict.PARITY_FAILED)
    both = compare(frame, rows=["label"], columns=["batch"], workloads=["resnet18"], include=["parity_failed"])
    assert both.loc["resnet18", 4] == pytest.approx(4**0.2 * 150)
    alone = compare(frame, rows=["label"], columns=["batch"], compilers=["openvino"], include=["parity_failed"])
    assert alone.loc["resnet18", 4] == pytest.approx(4**0.2 * 250)


def test_nodes_that_fell_back_are_told(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    cell = record.lanes[lane_id(record, "resnet18", "onnxruntime")].cells[1]
    cell.flags = {**cell.flags, "fallback_nodes": 3}
    table = compare(results.from_record(record))
    assert {found["cell"]: found["fallback_nodes"] for found in table.attrs["values"] if found["fallback_nodes"]} == {
        cell.id: 3
    }


def test_filters(frame: pd.DataFrame) -> None:
    table = compare(
        frame,
        rows=["workload"],
        columns=["compiler"],
        metric="latency_p50_ms",
        workloads=["resnet18"],
        devices=["xeon"],
        compilers=["identity", ORT],
        families=["ResNet"],
        batch_sizes=[1, 4],
        precisions=["fp32"],
    )
    assert list(table.index) == ["timm:resnet18"]
    assert list(table.columns) == ["identity", "onnxruntime"]
    assert table.loc["timm:resnet18", "identity"] == pytest.approx(10.0)  # the lower latency, at batch 1


def test_the_latest_study_wins_even_when_it_ended_worse(tmp_path: Path) -> None:
    old, new = (study_record(tmp_path / name, study_id=name) for name in ("old", "new"))
    new.started_at += 3600
    key = lane_id(new, "resnet18", "openvino")
    new.lanes[key].cells[1].metrics["throughput"] = 111.0
    new.lanes[key].cells[2].verdict = Verdict.UNSTABLE
    frame = pd.concat([results.from_record(new), results.from_record(old)], ignore_index=True)
    table = compare(frame, columns=["compiler"])
    assert table.loc[("resnet18", 1), "openvino"] == 111.0
    assert pd.isna(table.loc[("resnet18", 2), "openvino"])
    assert table.attrs["left_out"]["unstable"] == 2


def test_neither_high_nor_low_is_better(frame: pd.DataFrame) -> None:
    assert compare(frame, metric="repetitions").max().max() == 20
    with pytest.raises(UsageError, match="add 'batch' to the rows"):
        compare(frame, metric="repetitions", rows=["label"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rows": ["labels"]}, "unknown column 'labels': did you mean 'label'"),
        ({"metric": "troughput"}, "unknown metric 'troughput': did you mean 'throughput'"),
        ({"metric": "device"}, "unknown metric 'device'"),
        ({"include": ["parity_fail"]}, "unknown verdict 'parity_fail': did you mean 'parity_failed'"),
        ({"compilers": ["openvin"]}, "unknown compiler 'openvin': did you mean 'openvino'"),
        ({"batch_sizes": [3]}, "unknown batch '3'"),
    ],
)
def test_what_does_not_exist_is_named(frame: pd.DataFrame, asked: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        compare(frame, **asked)  # type: ignore[arg-type]


def test_nothing_to_compare(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    record.lanes = {}
    assert compare(results.from_record(record)).empty
