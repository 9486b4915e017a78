"""One's own numbers beside the paper's: what agrees, what does not, and what cannot be compared."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_ngraph.tables.distinct import distinct
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_report import paper, paper_points
from mlflow_ngraph_report.beside import agreements, beside, spearman
from mlflow_ngraph_report.blocks import Missing, Text
from mlflow_ngraph_report.environment import Machine
from mlflow_ngraph_report.prepared import Prepared, prepare
from tests.support import reported

HARDWARE: dict[str, Any] = {
    "architecture": "x86_64",
    "cpu": {"model": "Intel(R) Xeon(R) Processor", "vendor": "GenuineIntel", "family": "6", "model_number": "1",
            "stepping": "1", "isa": ["avx512f"], "sockets": 1, "cores": 2, "threads": 2},
    "memory_gib": 24, "gpus": [], "board": "",
}  # fmt: skip


def machine(device: str, **hardware: Any) -> Machine:
    fingerprint = {"hardware": {**HARDWARE, **hardware}, "system": {}}
    return Machine(f"digest-{device}", (device,), fingerprint, {"openvino": ("2025.4.0",)})


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(pd.concat([reported.models(), reported.blocks()], ignore_index=True))


def blocks(prepared: Prepared, *machines: Machine) -> dict[str, Any]:
    return {block.key: block for part in beside(prepared, machines).values() for block in part}


def test_the_tables_of_the_paper_are_complete() -> None:
    assert len(paper.table("table6_families")) == 40
    assert len(paper.table("table3_compile_seconds")) == 10
    assert len(paper.table("table7_depth_conv")) == len(paper.table("table8_depth_mha")) == 10
    (swins,) = [
        row for row in paper.table("table6_families")
        if (row["family"], row["compiler"], row["device"]) == ("Swins", "openvino", "xeon")
    ]  # fmt: skip
    assert paper.paper_number(swins, "throughput_b8_16") == 42.79


def test_speedups_by_family_stand_beside_the_papers(prepared: Prepared) -> None:
    chosen = paper.comparable(prepared, [machine("xeon"), machine("orin", board="Jetson Orin Nano")])
    points = [
        point for point in paper_points.points(chosen)["t6"]
        if point.device == "xeon" and point.series == "openvino" and not point.is_baseline
    ]  # fmt: skip
    assert len(points) == 10
    for point in points:
        frame = prepared.models
        rows = frame[(frame["device"] == "xeon") & (frame["family"] == point.group)]
        low, high = map(int, point.batch.split("–"))
        rows = rows[rows["batch"].between(low, high)]
        sums = rows.groupby("compiler")["throughput"].sum()
        assert point.here.value == pytest.approx(sums["openvino"] / sums["identity"])
        assert point.here.certain
        # by construction slower on Swins, faster elsewhere; in the paper OpenVINO is faster on all of them
        assert point.direction == ("differs" if point.group == "Swins" else "agrees")
    (resnets,) = [point for point in points if (point.group, point.batch) == ("ResNets", "2–4")]
    assert resnets.paper == pytest.approx(136.94 / 68.08)


def test_agreement_counts_and_correlates(prepared: Prepared) -> None:
    found = blocks(prepared, machine("xeon"), machine("orin", board="Jetson Orin Nano"))
    data = found["agreement"].data
    (speedup,) = data[(data["quantity"] == "table 6: speed-up by family") & (data["series"] == "openvino")].to_dict(
        "records"
    )
    assert (speedup["agrees"], speedup["differs"], speedup["undecided"], speedup["points"]) == (8, 2, 0, 10)
    assert speedup["spearman_ci_low"] < speedup["spearman"] < speedup["spearman_ci_high"]
    orders = data[data["quantity"].str.startswith("table 6: throughput of families")]
    assert {"identity", "openvino"} <= set(orders["series"])
    by_family = found["agreement-families"].data
    swins = by_family[(by_family["family"] == "Swins") & (by_family["series"] == "openvino")]
    assert swins[["agrees", "differs"]].to_numpy().tolist() == [[0, 2]]
    # Of the paper's tables of blocks, the Xeon has onnx and openvino in two widths at two batch sizes.
    slopes = data[data["quantity"] == "table 7: depth slope"]
    assert set(slopes["series"]) == {"onnxruntime", "openvino"}
    assert set(slopes["points"]) == {4}


def test_models_and_blocks_are_the_papers(prepared: Prepared) -> None:
    found = blocks(prepared, machine("xeon"))
    assert found["t4-paper"].caption == "30 of 30 numbers are equal to the paper's."
    blocks_too = found["t5-paper"]
    assert isinstance(blocks_too, Sheet)
    # the synthetic attention blocks have the convolution's parameters: not equal, and said so
    assert blocks_too.caption == "2 of 4 numbers are equal to the paper's."
    assert [row[-1].text for row in blocks_too.cells] == ["yes", "yes", "no", "no"]


def test_what_cannot_be_compared_says_why() -> None:
    frame = reported.models(devices=("xeon",))
    half = frame[frame["compiler"] == "openvino"].index
    frame.loc[half, "precision_in_force"] = "bf16"
    found = blocks(prepare(frame), machine("xeon"))
    told = found["paper-setup"]
    assert isinstance(told, Text)
    reasons = " ".join(told.paragraphs)
    assert "openvino: computed in another precision than fp32" in reasons
    assert "torch-compile: the paper's tables do not have this compiler" in reasons
    assert "xeon is Intel(R) Xeon(R) Processor" in reasons
    assert isinstance(found["agreement-families"], Missing)
    assert "another precision" in found["agreement-families"].reason


def test_tvm_without_a_search_is_not_the_papers() -> None:
    frame = reported.models(devices=("xeon",))
    tvm = frame[frame["compiler"] == "openvino"].assign(compiler="tvm", compiler_label="tvm")
    tvm = tvm.assign(cell="tvm-" + tvm["cell"])
    both = pd.concat([frame, tvm], ignore_index=True)
    assert any("without the search" in reason for reason in paper.comparable(prepare(both), []).reasons)
    searched = both.assign(tune_s=np.where(both["compiler"] == "tvm", 3600.0, np.nan))
    chosen = paper.comparable(prepare(searched), [])
    assert not any("without the search" in reason for reason in chosen.reasons)
    assert any(point.series == "tvm" for point in paper_points.points(chosen)["t6"])


@pytest.mark.parametrize(
    ("device", "hardware", "theirs"),
    [
        ("xeon", {}, "xeon"),
        ("host", {}, "xeon"),
        ("lab-orin", {"board": "NVIDIA Jetson Orin Nano Developer Kit"}, "orin"),
        ("host (3f2a1c)", {}, "xeon"),
        ("host", {"gpus": [{"name": "NVIDIA H100", "memory_mib": 81559}]}, "xeon"),
        ("lab-gpu", {"gpus": [{"name": "NVIDIA H100", "memory_mib": 81559}]}, "gpu"),
        ("host", {"cpu": {**HARDWARE["cpu"], "model": "AMD EPYC"}}, "xeon"),
        ("host", {"architecture": "aarch64"}, None),
    ],
)
def test_a_device_is_compared_with_one_of_its_kind(device: str, hardware: dict[str, Any], theirs: str | None) -> None:
    assert paper.paper_device(device, machine(device, **hardware)) == theirs


def test_an_x86_processor_that_is_no_xeon_is_compared_with_a_note(prepared: Prepared) -> None:
    epyc = machine("xeon", cpu={**HARDWARE["cpu"], "vendor": "AuthenticAMD", "model": "AMD EPYC 7B13"})
    chosen = paper.comparable(prepared, [epyc])
    assert (
        "AMD EPYC 7B13 is no Xeon: it stands beside the paper's because both are x86-64 processors." in chosen.caveats
    )
    told = paper.told_before("paper-models", "host", epyc.fingerprint)
    assert told == (
        "report --paper sets this beside the paper's 8 × Xeon (Skylake, 3.0 GHz), no GPU; this machine is AMD EPYC 7B13"
    )
    assert paper.told_before("paper-models", "host", machine("host").fingerprint) == ""
    assert "nothing to set beside" in paper.told_before(
        "paper-models", "host", machine("host", architecture="aarch64").fingerprint
    )


def test_a_model_of_the_paper_is_known_beside_another_of_its_name(prepared: Prepared) -> None:
    mine = reported.models()
    mine = mine[mine["label"] == "ResNet-18"].assign(
        workload="torch:m:resnet", cell=lambda rows: "mine-" + rows["cell"]
    )
    both = prepare(distinct(pd.concat([reported.models(), mine], ignore_index=True)))
    assert {"ResNet-18 (timm)", "ResNet-18 (torch)"} <= set(both.every["label"])
    (table,) = [block for block in beside(both, [])["t4"] if isinstance(block, Sheet)]
    assert set(table.data["model"]) >= {"ResNet-18"}


def test_an_unknown_device_is_refused_with_the_reason() -> None:
    found = blocks(prepare(reported.models(devices=("laptop",))))
    for key in ("t3-paper", "t6-paper", "agreement"):
        assert isinstance(found[key], Missing)
        assert "laptop: the paper has no device of this kind" in found[key].reason


def test_compile_time_is_ordered_not_judged(prepared: Prepared) -> None:
    frame = prepared.every.assign(
        compile_total_s=np.where(prepared.every["label"] == "ResNet-101", 2.249, prepared.every["compile_total_s"])
    )
    chosen = paper.comparable(prepare(frame), [machine("xeon")])
    points = paper_points.points(chosen)["t3"]
    assert {point.batch for point in points} == {"1"}  # the study has no batch size 32
    assert {point.series for point in points} == {"openvino"}
    (one,) = [point for point in points if point.group == "ResNet-101"]
    assert (one.here.value, one.paper, one.direction) == (2.249, 2.249, "")
    (agreed,) = [one for one in agreements(points) if one.quantity == "table 3: compile seconds"]
    assert agreed.order is not None
    assert agreed.order.value == pytest.approx(
        stats.spearmanr([p.here.value for p in points], [p.paper for p in points]).statistic
    )


def test_the_interval_of_a_rank_correlation() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        x = rng.normal(size=20)
        y = x + rng.normal(size=20)
        found = spearman(list(x), list(y))
        assert found is not None
        inside += found.low < 0.6905 < found.high  # the true rank correlation of such pairs, 6 / π asin(ρ / 2)
    assert 180 <= inside <= 200
    perfect = spearman([1, 2, 3, 4], [2, 3, 5, 7])
    assert perfect is not None
    assert perfect.value == pytest.approx(1)
    assert not perfect.certain
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1, 1], [1, 2, 3, 4]) is None


def test_files_of_the_paper_are_parsed_whole() -> None:
    for path in (Path(paper.__file__).parent / "paper").glob("*.csv"):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert rows
        assert all(value not in (None, "") for row in rows for value in row.values()), path.name
