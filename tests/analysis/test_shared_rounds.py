"""Two lanes of a study are compared by the rounds that they share."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph.analysis import shared_rounds, significance
from mlflow_ngraph.measure import statistics
from tests.support.tidy import Drawn, cells, grid

ROUNDS = st.lists(st.floats(-1, 1), min_size=2, max_size=30)


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
    ratio = significance.ratios(frame, "throughput", [0], [1])
    expected = statistics.paired_ratio(np.exp(others), np.exp(logs))
    assert ratio.log[0] == pytest.approx(float(expected.log), abs=1e-12)
    assert ratio.error[0] == pytest.approx(float(expected.error), abs=1e-12)
    assert ratio.freedom[0] == expected.freedom
    back = significance.ratios(frame, "throughput", [1], [0])
    assert back.log[0] == pytest.approx(-ratio.log[0], abs=1e-12)
    latency = significance.ratios(frame.assign(latency_p50_ms=[1.0, 2.0]), "latency_p50_ms", [0], [1])
    assert latency.log[0] == pytest.approx(-ratio.log[0], abs=1e-12)


def test_only_rounds_of_both_count_by_their_names() -> None:
    frame = two({"0.0": 1.0, "0.1": 1.1, "0.2": 9.0}, {"0.1": 2.1, "0.0": 2.0, "1.0": -9.0})
    ratio = shared_rounds.throughput_ratios(frame, np.array([0]), np.array([1]))
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
    assert not shared_rounds.throughput_ratios(frame, np.array([0]), np.array([1])).known.any()
    assert significance.ratios(frame, "throughput", [0], [1]).value[0] == pytest.approx(2.0)


def test_batch_sizes_that_raced_with_each_other_have_throughputs_of_the_same_rounds() -> None:
    """Latencies, and speed-ups over another baseline, are not a matter of the time of a sample."""
    frame = two({"0.0": 1.0, "0.1": 1.1}, {"0.0": 2.0, "0.1": 2.1}, batch=[1, 8], throughput=[100.0, 50.0])
    frame = frame.assign(latency_p50_ms=[10.0, 160.0], speedup=[2.0, 1.0])
    assert significance.ratios(frame, "throughput", [0], [1]).log[0] == pytest.approx(1.0)
    assert significance.ratios(frame, "latency_p50_ms", [0], [1]).value[0] == pytest.approx(1 / 16)
    assert significance.ratios(frame, "speedup", [0], [1]).value[0] == pytest.approx(2.0)


@pytest.mark.parametrize("texts", [["", ""], [None, None], ['{"0.0": 1.0}', '{"0.0": 2.0}'], ['{"0.0": 1.0}', "{}"]])
def test_fewer_than_two_rounds_tell_nothing(texts: list[str | None]) -> None:
    frame = two({}, {}).assign(log_medians=np.array(texts, object))
    assert not shared_rounds.throughput_ratios(frame, np.array([0]), np.array([1])).known.any()
    assert not shared_rounds.throughput_ratios(
        frame.drop(columns="log_medians"), np.array([0]), np.array([1])
    ).known.any()


def test_many_pairs_at_once_have_each_their_own_ratio() -> None:
    rounds = [
        {f"0.{place}": level + 0.01 * place * level for place in range(count)}
        for level, count in ((1, 3), (2, 3), (3, 5))
    ]
    frame = cells(compiler=["a", "b", "c"], compiler_label=["a", "b", "c"], log_medians=list(map(json.dumps, rounds)))
    tops, bottoms = np.array([0, 2, 0, 1, 1]), np.array([1, 1, 2, 1, 0])
    ratios = shared_rounds.throughput_ratios(frame, tops, bottoms)
    expected = [
        np.mean([rounds[b][f"0.{i}"] - rounds[t][f"0.{i}"] for i in range(3)])
        for t, b in zip(tops, bottoms, strict=True)
    ]
    assert ratios.log[[0, 1, 2, 4]] == pytest.approx(np.array(expected)[[0, 1, 2, 4]])
    assert np.isnan([ratios.log[3], ratios.error[3]]).all(), "a row does not race with itself"
    assert ratios.freedom[[0, 1, 2, 4]].tolist() == [2, 2, 2, 2]


def test_rows_that_are_equal_have_equal_numbers() -> None:
    frame = pd.DataFrame({"a": ["x", "x", None, np.nan, "y", "x"], "b": [1, 2, 1, 1, 1, 1], "c": range(6)})
    numbers = shared_rounds.codes(frame, ["a", "b"])
    assert numbers.tolist() == [0, 1, 2, 2, 3, 0]
    assert shared_rounds.codes(frame, ["b"]).tolist() == [0, 1, 0, 0, 0, 0]
    assert shared_rounds.codes(frame.assign(a=["", None, "x", np.nan, "", "x"]), ["a"]).tolist() == [0, 0, 1, 0, 0, 1]
    places = np.arange(6)
    assert shared_rounds.alike(frame, ["a", "b"], places, places[::-1]).tolist() == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    assert shared_rounds.alike(frame, ["a", "z"], places, places).tolist() == [False] * 6
    assert shared_rounds.alike(frame, ["a", "b", "c"], places, places).tolist() == [True] * 6


def test_what_slows_rounds_down_is_in_neither() -> None:
    """The noise that lanes share is five times their own: direct intervals do not know of it."""
    truth = grid(lambda compiler, batch: {"identity": 50.0, "onnxruntime": 100.0, "openvino": 104.0}[compiler],
                 compiler=["identity", "onnxruntime", "openvino"], batch=[1])  # fmt: skip
    inside, reaches = 0, []
    for seed in range(200):
        frame = Drawn(truth, noise=0.01, common=0.05, rounds=12).draw(seed)
        ratio = significance.ratios(frame, "throughput", [2], [1])
        low, high = ratio.ends
        inside += bool(low[0] <= 1.04 <= high[0])
        direct, over = float(ratio.reach()[0]), significance.figures(frame, "speedup")
        reaches.append(direct / float(over.take([2]).over(over.take([1])).reach()[0]))
    assert inside >= 180
    assert np.median(reaches) < 0.75, "the baseline's noise counts no more"
