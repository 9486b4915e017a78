"""Cells are compared by the rounds that they share, by chains of such pairs, and else as they stand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import APART, CHAIN, SAME_ROUNDS, Comparison, Ratios
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import CELL_METRICS, Metric
from tests.support.tidy import Drawn, cells, grid

ROUNDS = st.lists(st.floats(-1, 1), min_size=2, max_size=30)


def ratios(frame: pd.DataFrame, tops: Any, bottoms: Any, metric: str = "throughput") -> Ratios:
    return Comparison(frame, CELL_METRICS[metric]).ratios(tops, bottoms)


def two(one: dict[str, float], other: dict[str, float], **columns: list[object]) -> pd.DataFrame:
    """Two cells of one study with the medians of their rounds."""
    return cells(
        compiler=["openvino", "onnxruntime"], compiler_label=["openvino", "onnxruntime"],
        log_medians=[json.dumps(one), json.dumps(other)], **columns,
    )  # fmt: skip


@settings(max_examples=25)
@given(ROUNDS, st.data())
def test_it_is_the_paired_ratio_of_the_rounds_and_turns_around(logs: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(-1, 1), min_size=len(logs), max_size=len(logs)))
    frame = two(
        {f"0.{place}": log for place, log in enumerate(logs)}, {f"0.{place}": log for place, log in enumerate(others)}
    )
    ratio = ratios(frame, [0], [1])
    expected = statistics.paired_ratio(np.exp(others), np.exp(logs))
    assert ratio.log[0] == pytest.approx(float(expected.log), abs=1e-12)
    assert ratio.error[0] == pytest.approx(float(expected.error), abs=1e-12)
    assert ratio.freedom[0] == expected.freedom
    back = ratios(frame, [1], [0])
    assert back.log[0] == pytest.approx(-ratio.log[0], abs=1e-12)
    latency = ratios(frame.assign(latency_p50_ms=[1.0, 2.0]), [0], [1], "latency_p50_ms")
    assert latency.log[0] == pytest.approx(-ratio.log[0], abs=1e-12)


def test_only_rounds_of_both_count_by_their_names() -> None:
    frame = two({"0.0": 1.0, "0.1": 1.1, "0.2": 9.0}, {"0.1": 2.1, "0.0": 2.0, "1.0": -9.0})
    ratio = ratios(frame, [0], [1])
    assert ratio.log[0] == pytest.approx(1.0)
    assert ratio.error[0] == pytest.approx(0, abs=1e-9)
    assert ratio.freedom[0] == 1


@pytest.mark.parametrize(
    "columns",
    [{"study_id": ["a", "b"]}, {"batch": [1, 2]}, {"workload": ["timm:resnet18", "timm:resnet34"]}],
    ids=["study", "batch", "workload"],
)
def test_others_are_compared_as_they_stand(columns: dict[str, list[object]]) -> None:
    batches = columns.get("batch", [1, 1])
    one, other = ({f"0.0@{batch}": 1.0, f"0.1@{batch}": 1.1} for batch in batches)
    frame = two(one, other, throughput=[100.0, 50.0], **columns)
    found = ratios(frame, [0], [1])
    assert found.how.tolist() == [APART]
    assert found.value[0] == pytest.approx(2.0)


def test_batch_sizes_that_raced_with_each_other_have_throughputs_of_the_same_rounds() -> None:
    """Latencies, and speed-ups over another baseline, are not a matter of the time of a sample."""
    frame = two({"0.0": 1.0, "0.1": 1.1}, {"0.0": 2.0, "0.1": 2.1}, batch=[1, 8], throughput=[100.0, 50.0])
    frame = frame.assign(latency_p50_ms=[10.0, 160.0], speedup=[2.0, 1.0])
    assert ratios(frame, [0], [1]).log[0] == pytest.approx(1.0)
    assert ratios(frame, [0], [1], "latency_p50_ms").value[0] == pytest.approx(1 / 16)
    assert ratios(frame, [0], [1], "speedup").value[0] == pytest.approx(2.0)


@pytest.mark.parametrize("texts", [["", ""], [None, None], ['{"0.0": 1.0}', '{"0.0": 2.0}'], ['{"0.0": 1.0}', "{}"]])
def test_fewer_than_two_rounds_tell_nothing(texts: list[str | None]) -> None:
    frame = two({}, {}).assign(log_medians=np.array(texts, object))
    assert ratios(frame, [0], [1]).how.tolist() == [APART]
    assert ratios(frame.drop(columns="log_medians"), [0], [1]).how.tolist() == [APART]


def test_many_pairs_at_once_have_each_their_own_ratio() -> None:
    rounds = [
        {f"0.{place}": level + 0.01 * place * level for place in range(count)}
        for level, count in ((1, 3), (2, 3), (3, 5))
    ]
    frame = cells(compiler=["a", "b", "c"], compiler_label=["a", "b", "c"], log_medians=list(map(json.dumps, rounds)))
    tops, bottoms = np.array([0, 2, 0, 1, 1]), np.array([1, 1, 2, 1, 0])
    found = ratios(frame, tops, bottoms)
    expected = [
        np.mean([rounds[b][f"0.{i}"] - rounds[t][f"0.{i}"] for i in range(3)])
        for t, b in zip(tops, bottoms, strict=True)
    ]
    assert found.log == pytest.approx(expected)
    assert found.freedom.tolist() == [2, 2, 2, np.inf, 2], "a row is itself for sure"


def test_two_lanes_that_never_met_are_compared_by_the_one_that_both_met() -> None:
    """The baseline was measured with either of them; what the sessions were like is in neither ratio."""
    sessions = [{f"{session}.{place}": log + session + 0.01 * place for place in range(5)}
                for session, log in ((0, 1.0), (1, 2.0))]  # fmt: skip
    base = {name: 3.0 + float(name[0]) + 0.01 * int(name[2:]) for part in sessions for name in part}
    frame = cells(
        compiler_label=["openvino", "onnxruntime", "identity"], throughput=[100.0, 500.0, 20.0],
        log_medians=list(map(json.dumps, [*sessions, base])),
    )  # fmt: skip
    found = ratios(frame, [0, 0, 2], [1, 2, 2])
    assert found.how.tolist() == [CHAIN, SAME_ROUNDS, SAME_ROUNDS]
    assert found.log == pytest.approx([1.0, 2.0, 0.0])


@pytest.mark.parametrize("metric", ["throughput", "latency_p50_ms", "speedup"])
def test_batch_sizes_are_linked_by_the_figures_of_one_engine(metric: str) -> None:
    """OpenVINO at 8 is twice as good as itself at 1, by its own figures, and 1.5 times as good there as ONNX Runtime."""
    logs = {("openvino", 1): 1.0, ("onnxruntime", 1): 1.0 + np.log(1.5), ("openvino", 8): 0.5, ("onnxruntime", 8): 0.9}
    better = 1 if metric != "latency_p50_ms" else -1
    figures = {("openvino", 1): 1.0, ("onnxruntime", 1): 9.0, ("openvino", 8): 2.0, ("onnxruntime", 8): 7.0}
    frame = cells(
        compiler_label=[name for name, _ in logs], batch=[batch for _, batch in logs],
        log_medians=[json.dumps({f"0.{place}@{batch}": log + place for place in range(4)}) for (_, batch), log in logs.items()],
        **{metric: [value**better for value in figures.values()]},
    )  # fmt: skip
    frame[f"{metric}_log_se"], frame[f"{metric}_df"] = [0.01, 0.5, 0.01, 0.5], 9.0
    found = ratios(frame, [2, 2], [1, 0], metric)
    assert found.how.tolist() == [CHAIN, APART]
    assert found.value == pytest.approx(np.array([3.0, 2.0]) ** better)
    assert found.error[0] == pytest.approx(np.hypot(0.01, 0.01)), (
        "the step between batch sizes is that of the surer one"
    )


def test_a_row_over_itself_is_one_and_over_nothing_is_unknown() -> None:
    frame = cells(throughput=[100.0, 0.0, 50.0], batch=[1, 2, 4]).assign(page_faults_per_sample=[3.0, 0.0, 6.0])
    with np.errstate(all="raise"):
        faults = ratios(frame, [0, 0, 1, 2], [0, 1, 1, 0], "page_faults_per_sample")
    assert faults.value == pytest.approx([1.0, np.nan, 1.0, 2.0], nan_ok=True)
    assert faults.error[[0, 2]].tolist() == [0.0, 0.0]
    frame = frame.assign(of_mine=[2.0, 4.0, 8.0], batch=1, log_medians='{"0.0": 1.0, "0.1": 1.1}')
    declared = Comparison(frame, Metric("of_mine", "1", "higher", "2 * rtr")).ratios([2], [0])
    assert declared.value == pytest.approx([4.0])
    twice = pd.concat([frame.assign(study_id="one"), frame.assign(study_id="two")], ignore_index=True)
    others = ratios(twice, [0, 3], [3, 0], "page_faults_per_sample")
    assert np.isnan(others.error).all(), "the same cell of another study is another measurement"


def test_what_slows_rounds_down_is_in_neither() -> None:
    """The noise that lanes share is five times their own: direct intervals do not know of it."""
    truth = grid(lambda compiler, batch: {"identity": 50.0, "onnxruntime": 100.0, "openvino": 104.0}[compiler],
                 compiler=["identity", "onnxruntime", "openvino"], batch=[1])  # fmt: skip
    inside, reaches = 0, []
    for seed in range(200):
        frame = Drawn(truth, noise=0.01, common=0.05, rounds=12).draw(seed)
        ratio = ratios(frame, [2], [1])
        low, high = ratio.ends
        inside += bool(low[0] <= 1.04 <= high[0])
        direct, over = float(ratio.reach()[0]), significance.figures(frame, "speedup")
        reaches.append(direct / float(over.take([2]).over(over.take([1])).reach()[0]))
    assert inside >= 180
    assert np.median(reaches) < 0.75, "the baseline's noise counts no more"
