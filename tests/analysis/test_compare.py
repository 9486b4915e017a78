"""Pivots of the newest trustworthy results."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.analysis.selection import Selection, baseline
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.tables.results import from_record as table_of
from mlflow_ngraph.verdicts import Verdict
from tests.support.records import lane_id, study_record
from tests.support.tidy import cells

ORT = "onnxruntime[opt_level=2]"


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    devices = (("xeon", "one"), ("orin", "two"))
    return pd.concat(
        [table_of(study_record(tmp_path / name, study_id=name, device=device)) for device, name in devices],
        ignore_index=True,
    )


def test_workloads_against_devices_and_compilers(frame: pd.DataFrame) -> None:
    table, about = compare(frame)
    assert table.loc[("resnet18", 1), ("orin", "openvino")] == pytest.approx(250)
    assert table.isna().loc[("deit-t", 2), ("xeon", ORT)]
    assert about["left_out"] == {"unsupported": 6, "timeout": 2, "crashed": 2}
    assert about["cells"] == 26
    assert about["unit"] == "samples/s"


def test_all_verdicts_on_request(frame: pd.DataFrame) -> None:
    table, about = compare(frame, include=[str(verdict) for verdict in Verdict])
    assert table.loc[("deit-t", 2), ("xeon", ORT)] == pytest.approx(2**0.2 * 150)
    assert about["left_out"] == {}


def wrong(tmp_path: Path, verdict: Verdict) -> pd.DataFrame:
    """The fastest cell of ResNet-18 at batch 4 has numbers and a verdict that is not ok."""
    record = study_record(tmp_path / verdict)
    cell = record.lanes[lane_id(record, "resnet18", "openvino")].cells[4]
    cell.verdict, cell.reason, cell.precision_in_force = verdict, "for a reason", "bf16"
    return table_of(record)


@pytest.mark.parametrize("verdict", [Verdict.PARITY_FAILED, Verdict.TIMEOUT])
def test_a_cell_that_is_not_ok_keeps_its_numbers_and_enters_no_ranking(verdict: Verdict, tmp_path: Path) -> None:
    frame = wrong(tmp_path, verdict)
    cell = frame[(frame["label"] == "resnet18") & (frame["compiler"] == "openvino") & (frame["batch"] == 4)].iloc[0]
    assert cell["throughput"] > 0
    assert cell["parity_cosine"] > 0
    best = ["label", "batch"]
    ranked, about = compare(frame, rows=["label"], columns=["batch"], workloads=["resnet18"], best=best)
    assert ranked.loc["resnet18", 4] == pytest.approx(4**0.2 * 150)  # ONNX Runtime is the fastest of those that are ok
    assert about["left_out"] == {str(verdict): 1}
    asked, about = compare(frame, rows=["label"], columns=["compiler"], batch_sizes=[4], include=[str(verdict)])
    assert asked.loc["resnet18", "openvino"] == pytest.approx(cell["throughput"])
    (value,) = [found for found in about["values"] if found["cell"] == cell["cell"]]
    assert (value["verdict"], value["precision_in_force"]) == (str(verdict), "bf16")


def test_a_doubtful_number_does_not_hide_a_good_one(tmp_path: Path) -> None:
    frame = wrong(tmp_path, Verdict.PARITY_FAILED)
    asked: dict[str, Any] = {"rows": ["label"], "columns": ["batch"], "include": ["parity_failed"]}
    both = compare(frame, workloads=["resnet18"], best=["label", "batch"], **asked).table
    assert both.loc["resnet18", 4] == pytest.approx(4**0.2 * 150)
    alone = compare(frame, compilers=["openvino"], **asked).table
    assert alone.loc["resnet18", 4] == pytest.approx(4**0.2 * 250)


def test_nodes_that_fell_back_are_told(tmp_path: Path) -> None:
    record = study_record(tmp_path)
    cell = record.lanes[lane_id(record, "resnet18", "onnxruntime")].cells[1]
    cell.flags = {**cell.flags, "fallback_nodes": 3}
    table = compare(table_of(record))
    assert {found["cell"]: found["fallback_nodes"] for found in table.about["values"] if found["fallback_nodes"]} == {
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
        best=["workload", "compiler"],
    ).table
    assert list(table.index) == ["timm:resnet18"]
    assert list(table.columns) == ["identity", "onnxruntime"]
    assert table.loc["timm:resnet18", "identity"] == pytest.approx(10.0)  # the lower latency, at batch 1


def test_the_latest_study_wins_even_when_it_ended_worse(tmp_path: Path) -> None:
    old, new = (study_record(tmp_path / name, study_id=name) for name in ("old", "new"))
    new.started_at += 3600
    key = lane_id(new, "resnet18", "openvino")
    new.lanes[key].cells[1].metrics["throughput"] = 111.0
    new.lanes[key].cells[2].verdict = Verdict.TIMEOUT
    frame = pd.concat([table_of(new), table_of(old)], ignore_index=True)
    table, about = compare(frame, columns=["compiler"])
    assert table.loc[("resnet18", 1), "openvino"] == 111.0
    assert table.isna().loc[("resnet18", 2), "openvino"]
    assert about["left_out"]["timeout"] == 2


def test_neither_high_nor_low_is_better(frame: pd.DataFrame) -> None:
    assert compare(frame, metric="repetitions").table.max().max() == 20
    with pytest.raises(UsageError, match="no repetitions is the better one: leave out best"):
        compare(frame, metric="repetitions", rows=["label"], best=["label"])


def two_of_everything() -> pd.DataFrame:
    """Cells of two models, devices, flag sets, precisions, threads and batch sizes, all with other figures."""
    axes: dict[str, list[Any]] = {
        "workload": ["torch:a", "torch:b"], "device": ["xeon", "orin"], "compiler_label": ["openvino", "openvino[x=1]"],
        "precision": ["fp32", "bf16"], "threads": [1, None], "batch": [1, 8],
    }  # fmt: skip
    every = pd.MultiIndex.from_product(list(axes.values()), names=list(axes)).to_frame(index=False)
    frame = cells(
        **{name: every[name].tolist() for name in axes if name != "threads"},
        label=every["workload"].str[-1].tolist(),
        throughput=[100.0 + place for place in range(len(every))],
    )
    frame["threads"] = pd.array([None if pd.isna(number) else int(number) for number in every["threads"]], "Int64")
    frame["cell"] = frame["cell"] + frame["threads"].astype("string").fillna("")
    return frame


@pytest.mark.parametrize(
    ("rows", "columns"),
    [("batch", "compiler"), ("device", "compiler"), ("workload", "device,compiler"), ("verdict", "family")],
)
def test_no_two_cells_fall_together(rows: str, columns: str) -> None:
    frame = two_of_everything()
    table, about = compare(frame, rows=[rows], columns=columns.split(","))
    shown = {one["cell"]: one["value"] for one in about["values"]}
    assert shown == dict(zip(frame["cell"], frame["throughput"], strict=True))
    assert sorted(table.stack(list(range(table.columns.nlevels)), future_stack=True).dropna()) == sorted(
        frame["throughput"]
    )
    assert about["refined"] == ({"compiler": "compiler_label"} if "compiler" in columns else {})
    assert not any(one["which"] for one in about["values"])


def test_the_best_of_several_says_which_one_it_is() -> None:
    compared = compare(two_of_everything(), rows=["label"], columns=["compiler"], best=["label", "device"])
    assert compared.about["added"] == ["device"], "what is best of a device is not what is best of the other"
    found = told(compared, label="a", device="orin")
    assert found["which"] == {
        "compiler_label": "openvino[x=1]", "precision": "bf16", "threads": "default", "batch": "8",
    }  # fmt: skip


def test_two_models_of_one_label_are_two_rows() -> None:
    frame = cells(workload=["torch:a", "torch:b"], label=["net", "net"], throughput=[1.0, 2.0])
    assert compare(frame).about["added"] == ["workload"]


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
    assert compare(table_of(record)).table.empty


def told(compared: Described, **names: str) -> dict[str, Any]:
    (found,) = [one for one in compared.about["values"] if names.items() <= one.items()]
    return found


def test_numbers_relative_to_a_compiler_that_is_not_selected() -> None:
    frame = cells(compiler=["identity", "openvino"], compiler_label=["identity", "openvino"], throughput=[50.0, 100.0])
    compared = compare(frame, compilers=["openvino"], relative_to=("compiler", "identity"))
    assert list(compared.table) == [("xeon", "openvino")]
    found = told(compared, compiler_label="openvino")
    assert found["value"] == pytest.approx(2.0)
    # Paired: its own speed-up, with that interval.
    row = frame[frame["compiler"] == "openvino"].iloc[0]
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(
        (row["speedup_ci_low"], row["speedup_ci_high"]), rel=0.01
    )
    assert not found["tied"]
    assert (compared.about["unit"], compared.about["relative_to"]) == ("1", "compiler=identity")


def test_numbers_relative_to_a_device_are_compared_as_they_stand() -> None:
    frame = cells(device=["xeon", "orin", "orin"], batch=[1, 1, 2], throughput=[100.0, 25.0, 40.0])
    compared = compare(frame, relative_to=("device", "xeon"))
    assert told(compared, device="orin")["value"] == pytest.approx(0.25)
    assert told(compared, device="xeon")["tied"]
    assert compared.about["without_baseline"] == 1


def test_numbers_relative_to_an_earlier_study() -> None:
    frame = cells(study=["before", "after"], study_id=["1", "2"], started_at=[1.0, 2.0], throughput=[100.0, 96.0])
    found = told(compare(frame, relative_to=("study", "before")), label="resnet18")
    assert found["value"] == pytest.approx(0.96)
    assert not found["tied"]


def test_what_cannot_be_told_from_the_best_is_a_tie() -> None:
    labels = ["a", "b", "c"]
    frame = cells(compiler=labels, compiler_label=labels, throughput=[100.0, 100.2, 90.0])
    table = compare(frame)
    marks = {one["compiler_label"]: (one["best"], one["tied"]) for one in table.about["values"]}
    assert marks == {"a": (False, True), "b": (True, False), "c": (False, False)}
    only = compare(frame, best=["label"])
    assert {one["compiler_label"] for one in only.about["values"]} == {"a", "b"}


def test_an_earlier_result_of_a_quiet_machine_is_named() -> None:
    frame = cells(
        study_id=["one", "two", "one", "two"], batch=[1, 1, 2, 2], started_at=[1e9, 2e9, 1e9, 2e9],
        noise=["", "foreign load", "", ""],
    )  # fmt: skip
    said = "of 1 cell the latest results are of a busy machine; earlier ones of a quiet machine: --studies one"
    assert compare(frame).about["quieter"] == said
    assert compare(frame, studies=["two"]).about["quieter"] == compare(frame, batch_sizes=[2]).about["quieter"] == ""


def test_a_better_number_without_an_interval_is_a_tie() -> None:
    labels = ["a", "b", "c"]
    frame = cells(compiler=labels, compiler_label=labels, throughput=[100.0, 120.0, 80.0])
    for name in ("ci_low", "ci_high", "log_se", "df"):
        frame.loc[1:, f"throughput_{name}"] = np.nan
    marks = {one["compiler_label"]: (one["best"], one["tied"]) for one in compare(frame).about["values"]}
    assert marks == {"a": (True, False), "b": (False, True), "c": (False, False)}


def test_of_metrics_without_intervals_equal_numbers_are_ties() -> None:
    frame = cells(compiler_label=["a", "b", "c"], peak_memory_mb=[100.0, 100.0, 100.1])
    found = compare(frame, metric="peak_memory_mb").about["values"]
    assert [(one["best"], one["tied"]) for one in found] == [(True, False), (False, True), (False, False)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [(None, ["a", "b", "c"]), ("-label", ["c", "b", "a"]), ("value", ["b", "c", "a"]), ("-value", ["a", "c", "b"])],
)
def test_sorting(sort: str | None, expected: list[str]) -> None:
    frame = cells(label=["a", "b", "c"], workload=["a", "b", "c"], throughput=[30.0, 10.0, 20.0])
    assert list(compare(frame, rows=["label"], sort=sort).table.index) == expected


def test_filters_that_fit_nothing_together_say_what_each_fits() -> None:
    frame = cells(device=["xeon", "orin"], compiler=["openvino", "tensorrt"], compiler_label=["openvino", "tensorrt"])
    with pytest.raises(UsageError, match="devices orin alone fits 1 of 2 cells; compilers openvino alone fits 1 of 2"):
        compare(frame, devices=["orin"], compilers=["openvino"])
    with pytest.raises(UsageError, match="studies began between 2025-10-09"):
        compare(frame, selection=Selection(since="2030-01-01"))


def test_what_cannot_be_a_baseline() -> None:
    with pytest.raises(UsageError, match="'identity' is no baseline: write compiler=identity"):
        baseline("identity")
    with pytest.raises(UnknownNameError, match="unknown device 'gpu': known: xeon"):
        compare(cells(), relative_to=("device", "gpu"))
    with pytest.raises(UnknownNameError, match="unknown row to sort by 'device'"):
        compare(cells(), sort="device")


@pytest.mark.parametrize("seed", range(20))
def test_a_pivot_is_that_of_a_naive_walk(seed: int) -> None:
    """Newest of each cell, ok alone, best where several fall together: by loops over dictionaries."""
    rng = np.random.default_rng(seed)
    count = 60
    frame = cells(
        label=list(rng.choice(["a", "b"], count)), compiler_label=list(rng.choice(["x", "y"], count)),
        batch=list(rng.choice([1, 2], count)), device=list(rng.choice(["xeon", "orin"], count)),
        verdict=list(rng.choice(["ok", "ok", "timeout"], count)), throughput=list(rng.uniform(1, 100, count)),
        started_at=list(rng.permutation(count).astype(float)), precision=list(rng.choice(["fp32", "bf16"], count)),
    )  # fmt: skip
    frame["cell"] = frame[["label", "cell"]].agg("/".join, axis=1)
    newest: dict[str, dict[Hashable, Any]] = {}
    for row in frame.to_dict("records"):
        if row["cell"] not in newest or newest[row["cell"]]["started_at"] < row["started_at"]:
            newest[row["cell"]] = row
    expected: dict[tuple[Any, ...], float] = {}
    for row in newest.values():
        if row["verdict"] == "ok":
            key = ((row["label"], row["batch"], row["precision"]), (row["device"], row["compiler_label"]))
            expected[key] = max(expected.get(key, 0.0), row["throughput"])
    table = compare(frame, rows=["label", "batch", "precision"]).table
    assert {(index, column): value for column in table for index, value in table[column].dropna().items()} == expected


def test_a_workload_may_leave_options_open() -> None:
    blocks = [f"block:mha?depth={depth}&width={width}" for width in (16, 32) for depth in (1, 6)]
    frame = cells(workload=blocks, label=blocks)

    def found(workload: str) -> list[str]:
        return list(Selection(workloads=[workload]).of(frame)["workload"])

    assert found("block:mha?width=16") == blocks[:2]
    assert found("block:mha?width=16&depth=6") == blocks[1:2]
    with pytest.raises(UsageError, match="workload 'block:mha' is ambiguous: block:mha"):
        Selection(workloads=["block:mha"]).check(frame)
    for other in ("block:mha?width=64", "block:conv?width=16", "timm:mha?width=16"):
        with pytest.raises(UnknownNameError, match="unknown workload"):
            Selection(workloads=[other]).check(frame)


def test_nothing_is_divided_by_a_baseline_of_zero(tmp_path: Path) -> None:
    """Eager execution that causes no page faults, as other processes that used nothing."""
    record = study_record(tmp_path)
    for name, faults in (("identity", 0.0), ("onnxruntime", 0.25), ("openvino", 0.0)):
        for cell in record.lanes[lane_id(record, "resnet18", name)].cells.values():
            cell.metrics["page_faults_per_sample"] = faults
    frame = table_of(record)
    asked: dict[str, Any] = {"metric": "page_faults_per_sample", "workloads": ["resnet18"], "batch_sizes": [1]}
    asked["columns"] = ["compiler"]
    divided = compare(frame, relative_to=("compiler", "identity"), **asked)
    assert [(one["compiler"], one["value"]) for one in divided.about["values"]] == [("identity", 1.0)]
    assert divided.about["without_baseline"] == 2
    turned = compare(frame, relative_to=("compiler", "onnxruntime"), **asked).about["values"]
    assert {one["compiler"]: one["value"] for one in turned} == {"identity": 0.0, "onnxruntime": 1.0, "openvino": 0.0}
    assert len(compare(frame, **asked).about["values"]) == 3
