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
from mlflow_ngraph.analysis.rivals import rivals_of
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import CELL_METRICS, METRICS, Metric
from tests.support.tidy import Drawn, cells, grid, raced

NAN = float("nan")
EITHER = pytest.mark.parametrize("metric", ["throughput", "latency_p50_ms"])
"""More is better, or less."""
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


def test_more_pairs_than_are_remembered_have_the_ratios_of_a_few() -> None:
    frame = raced("throughput", ("a", 1, 100, 0.01, 100), ("b", 1, 90, 0.02, 95), ("c", 8, 300, 0.03, None))
    tops, bottoms = np.arange(10_001) % 3, np.arange(10_001) // 3 % 3
    many, few = ratios(frame, tops, bottoms), ratios(frame, tops[:9], bottoms[:9])
    for name in ("log", "error", "freedom", "how"):
        assert (getattr(many, name) == np.resize(getattr(few, name), 10_001)).all()
    with pytest.raises(ValueError, match="shorter"):
        ratios(frame, [0, 1], [2])


def test_speed_ups_over_different_baselines_have_no_ratio() -> None:
    """What is said of the race of both would be of another quantity."""
    frame = raced(
        "speedup", ("a", 1, 4, 0.01, 100), ("b", 1, 2, 0.01, 200), ("c", 1, 3, 0.01, 100),
        baseline=["identity", "onnxruntime", "identity"],
    )  # fmt: skip
    found = ratios(frame, [0, 1, 0], [1, 2, 2], "speedup")
    assert np.isnan(found.log).tolist() == np.isnan(found.error).tolist() == [True, True, False]
    assert not np.isnan(ratios(frame, [0, 1, 0], [1, 2, 2]).log).any()
    assert Comparison(frame, METRICS["speedup"]).leader([0, 1]) == 0


def test_of_no_cells_nothing_is_said() -> None:
    compared = Comparison(raced("throughput", ("a", 1, 100, 0.01, 100)), METRICS["throughput"])
    assert rivals_of(compared, 0, []) == rivals_of(compared, None, []) == ()
    assert [len(found) for found in (compared.ordered([]), compared.equals(0, []), compared.tied(0, []))] == [0] * 3


@pytest.mark.parametrize(
    ("value", "error", "faster", "shorter"),
    [
        (1.0, 0.001, False, False),
        (1.05, 0.001, True, False),
        (0.95, 0.001, False, True),
        (1.0, 0.02, True, True),
        (1.02, 0.01, True, False),
        (0.98, 0.01, False, True),
        (10.0, 3.0, True, False),
        (0.1, 3.0, False, True),
        (2.0, 0.0, True, False),
        (0.5, 0.0, False, True),
        (2.0, NAN, False, False),
        (0.5, NAN, False, False),
    ],
)
def test_a_ratio_could_be_better_if_its_interval_is_by_more_than_counts(
    value: float, error: float, faster: bool, shorter: bool
) -> None:
    """Not if it has none, and not if it is wider than those that are shown and on the other side of 1."""
    ratio = Estimate(np.log([value]), np.array([error]), np.array([np.inf]))
    frame = cells(latency_p50_ms=[1.0], cpu_reduction=[0.0])
    could = [
        bool(Comparison(frame, METRICS[metric]).could_beat(ratio)[0])
        for metric in ("throughput", "latency_p50_ms", "cpu_reduction")
    ]
    assert could == [faster, shorter, shorter], "a complement is compared by its rest"


@EITHER
@pytest.mark.parametrize(
    ("own", "gain", "better"),
    [
        (100, 3.1, True), (100, 2.9, False), (100, -5, False), (0.5, 0.02, True), (0.5, 0.01, False), (0, 1, True),
        (0, 0, False), (-100, 2.9, False), (-100, 3.1, True), (100, NAN, False),
    ],
)  # fmt: skip
def test_a_number_is_better_by_more_than_counts(metric: str, own: float, gain: float, better: bool) -> None:
    compared = Comparison(cells(**{metric: [float(own)]}), METRICS[metric])
    number = own - gain if metric == "latency_p50_ms" else own + gain
    assert compared.better_than(np.array([number]), 0).tolist() == [better]


@EITHER
def test_as_good_are_those_that_cannot_differ_by_more_than_counts(metric: str) -> None:
    others = [
        (100, 0.001, True), (102.8, 0.0005, True), (97.2, 0.0005, True), (104, 0.001, False), (96, 0.001, False),
        (120, 0.01, False), (80, 0.01, False), (100, 0.05, False), (100, NAN, True), (101, NAN, False),
    ]  # fmt: skip
    rows = [(f"c{place}", place, value, error, None) for place, (value, error, _) in enumerate(others, 1)]
    compared = Comparison(raced(metric, ("it", 100, 100, 0.0001, None), *rows), METRICS[metric])
    as_good = [place for place, (*_, equal) in enumerate(others, 1) if equal]
    assert compared.equals(0, np.arange(len(others) + 1)).tolist() == [0, *as_good]
    assert compared.equals(0, as_good[::-1]).tolist() == as_good[::-1]


def test_numbers_without_intervals_are_as_good_if_equal_and_never_unsure() -> None:
    frame = cells(peak_memory_mb=[200.0, 200.0, 201.0, 300.0], compiler_label=["a", "b", "c", "d"])
    compared = Comparison(frame, METRICS["peak_memory_mb"])
    assert compared.equals(0, [0, 1, 2, 3]).tolist() == [0, 1]
    assert not compared.could_win(3, np.arange(4)).any()


@EITHER
def test_ties_of_a_cell_and_who_could_beat_it(metric: str) -> None:
    rows = {
        "it": ("it", 1, 100, 0.0001, None),
        "near": ("near", 2, 95, 0.05, 100),
        "near, but loses in its rounds": ("loses", 2, 95, 0.05, 98),
        "slower": ("slower", 3, 50, 0.05, None),
        "slower with a useless interval": ("far", 4, 20, 3, None),
        "slower by less than counts": ("equal", 5, 98.9, 0.002, None),
        "faster": ("faster", 6, 200, 0.05, None),
        "faster with p = 0.03": ("chance", 7, 110, 0.044, None),
        "it at another batch size": ("it", 8, 100, 0.05, 100),
        "as good as that": ("like", 8, 90, 0.05, 100.01),
    }
    names, chance = list(rows), list(rows).index("faster with p = 0.03")
    compared = Comparison(raced(metric, *rows.values()), METRICS[metric])
    tied = {"near", "slower by less than counts", "faster with p = 0.03", "it at another batch size"}
    could = {"near", "faster", "faster with p = 0.03", "it at another batch size"}
    for places in (range(len(names)), range(len(names))[::-1]):
        marks = compared.tied(0, list(places)), compared.could_win(0, np.array(places))
        told = [{names[place] for place, mark in zip(places, marked, strict=True) if mark} for marked in marks]
        assert told == [tied, could]
    assert compared.tied(0, [0, chance]).tolist() == [False, False], "alone it would not be by chance"


@EITHER
def test_who_loses_in_its_own_rounds_by_ever_so_little_could_not_beat_another_choice(metric: str) -> None:
    frame = raced(metric, ("answer", 1, 100, 0.001, None), ("first", 8, 100, 0.1, 100), ("second", 8, 99, 0.1, 99))
    assert Comparison(frame, METRICS[metric]).could_win(0, np.arange(3)).tolist() == [False, True, False]


@EITHER
def test_without_an_interval_a_better_figure_could_win(metric: str) -> None:
    frame = raced(
        metric, ("answer", 1, 100, 0.001, None), ("better", 8, 140, NAN, 100), ("its mate", 8, 150, NAN, 90),
        ("hardly", 4, 102, NAN, None), ("worse", 2, 60, NAN, None), ("sure", 16, 50, 0.001, None),
    )  # fmt: skip
    could = Comparison(frame, METRICS[metric]).could_win(0, np.arange(6))
    assert could.tolist() == [False, True, False, False, False, False]


FAST, SMALL = ("fast", 1, 100.0, 0.001, 100.0), ("small", 1, 99.5, 0.001, 99.5)


@EITHER
@pytest.mark.parametrize(
    ("others", "lead"),
    [
        pytest.param([], 1, id="nobody could beat either"),
        pytest.param([("other", 8, 90, 0.2, None)], 0, id="another choice could beat both"),
        pytest.param([("fast", 8, 90, 0.2, None)], 0, id="the same choice could beat one, and another the other"),
        pytest.param([("small", 8, 90, 0.2, 90), ("fast", 8, 91, 0.001, 91)], 0, id="its own choice could beat one"),
        pytest.param([("small", 8, 90, 0.2, 90), ("fast", 8, 91, 0.2, 91)], 1, id="its own choice could beat each"),
    ],
)
def test_of_equally_good_cells_the_smaller_leads_unless_more_could_beat_it(
    metric: str, others: list[Any], lead: int
) -> None:
    frame = raced(metric, FAST, SMALL, *others, engine_size_mb=[20.0, 10.0, *[15.0] * len(others)])
    for places in (range(len(frame)), range(len(frame))[::-1]):
        assert Comparison(frame, METRICS[metric]).leader(list(places)) == lead


@pytest.mark.parametrize(
    ("sizes", "memory", "expected"),
    [
        ([10.0, 9.0], [100.0, 200.0], (1, "the smaller engine")),
        ([10.0, 10.2], [100.0, 90.0], (1, "less memory")),
        ([0.0, 0.0], [100.0, 90.0], (1, "less memory")),
        ([NAN, 9.0], [90.0, 100.0], (0, "less memory")),
        ([10.2, 10.0], [101.0, 100.0], (0, "")),
        ([NAN, NAN], [NAN, NAN], (0, "")),
    ],
)
def test_the_first_criterion_that_differs_decides(
    sizes: list[float], memory: list[float], expected: tuple[int, str]
) -> None:
    compared = Comparison(
        raced("throughput", FAST, SMALL, engine_size_mb=sizes, peak_memory_mb=memory), METRICS["throughput"]
    )
    assert compared.preferred(0, np.array([0, 1])) == expected


@EITHER
@pytest.mark.parametrize(
    ("rows", "lead"),
    [
        pytest.param([("one", 1, 100, 0.1, 100), ("two", 1, 90, 0.1, 120)], 1, id="two, by their rounds"),
        pytest.param(
            [("known", 1, 100, 0.001, 100), ("single", 1, 50, NAN, 200), ("third", 8, 80, 0.001, None)], 1,
            id="one without an interval, by the best with one in its rounds",
        ),
        pytest.param(
            [("third", 8, 80, 0.001, None), ("one", 1, 95, NAN, 90), ("two", 1, 90, NAN, 95)], 0,
            id="not those whose rounds have no interval beside another one",
        ),
        pytest.param([("one", 1, 90, NAN, 95), ("two", 1, 95, NAN, 90)], 0, id="those without intervals, by their rounds"),
    ],
)  # fmt: skip
def test_the_best_by_pairs_leads(metric: str, rows: list[Any], lead: int) -> None:
    compared = Comparison(raced(metric, *rows), METRICS[metric])
    assert compared.leader(np.arange(len(rows))) == compared.leader(np.arange(len(rows))[::-1]) == lead


def test_a_race_is_left_because_of_a_cell_of_the_same_study() -> None:
    rows = [(name, 1, rate, 0.01, rate) for name, rate in (("a", 100), ("b", 80), ("c", 60))]
    frame = raced("throughput", *rows, *rows)
    beaten_by = pd.Series([None, *frame["cell"][[0, 1]], None, None, None], dtype=object)
    frame = frame.assign(study_id=["one"] * 3 + ["two"] * 3, beaten_by=beaten_by)
    compared, places = Comparison(frame, METRICS["throughput"]), np.arange(6)
    assert compared.left(places, places).tolist() == [False, True, True, False, False, False]
    assert compared.left(places, places[1:]).tolist() == [False, False, True, False, False, False]
    unsaid = Comparison(frame.drop(columns=["beaten_by", "cell"]), METRICS["throughput"])
    assert not unsaid.left(places, places).any()
