"""Which cell leads, which could still beat it, and what is said of that."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mlflow_ngraph.analysis import undecided
from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.decision import Gain
from mlflow_ngraph.analysis.ranking import EngineQuestion, rank
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.analysis.rivals import rivals_of
from mlflow_ngraph.errors import NoAnswerError
from mlflow_ngraph.metrics import METRICS
from mlflow_ngraph_engines import champion
from tests.support.tidy import Drawn, cells, grid, raced

THROUGHPUT = METRICS["throughput"]
NAMES = ["identity", "onnxruntime", "openvino"]


def measured(openvino: float, noise: float = 0.01, seed: int = 0, rounds: int = 12) -> pd.DataFrame:
    """ONNX Runtime does 100 samples/s, and OpenVINO so many; beside both the machine is restless."""
    rates = {"identity": 50.0, "onnxruntime": 100.0, "openvino": openvino}
    frame = Drawn(grid(lambda compiler, batch: rates[compiler], compiler=NAMES, batch=[1]), noise, 0.05, rounds).draw(
        seed
    )
    return frame.assign(model_id=["m-a", "m-b", "m-c"], repetitions=120.0, rounds=float(rounds), load_s=0.1)


def test_rounds_decide_where_absolute_figures_cannot() -> None:
    frame = measured(108.0)
    noisy = frame.assign(noise="others used 40 %", unsteady="throughput")
    table, about = recommend(noisy)
    assert about["undecided"] == []
    assert table.loc[table["best"], "compiler"].tolist() == ["openvino"]
    apart = noisy.assign(log_medians="", throughput_log_se=0.05, throughput_df=11.0)
    (doubt,) = recommend(apart).about["undecided"]
    assert [rival["row"]["compiler"] for rival in doubt["rivals"]] == ["onnxruntime"]


def test_what_cannot_be_told_is_undecided_with_what_would_tell(own_studies: Path) -> None:
    table, about = recommend(measured(100.5, noise=0.06, seed=1))
    (doubt,) = about["undecided"]
    (rival,) = doubt["rivals"]
    assert not table["best"].any()
    assert rival["ratio_ci_low"] < 1
    assert rival["ratio_ci_high"] > 1.03
    assert rival["repetitions"] > 120
    gain, open_, _ = doubt["said"].split("; ")
    assert len(gain + open_) <= 200, "two lines of a terminal of 100 columns"
    named = r"[\d.]+ \[[\d.]+, [\d.]+\] times eager with o\w+ at batch 1 \([\d.]+ samples/s \["
    assert re.match(rf"resnet18 on xeon: {named}", gain), "the gain first"
    assert re.fullmatch(r"undecided: o\w+ at batch 1 \([\d.]+ \[[\d.]+, [\d.]+\] of that\) could be better", open_)
    assert (
        f"{rival['repetitions']} repetitions would tell: mlflow-ngraph benchmark {own_studies}/study/study.yaml "
        "--workloads timm:resnet18 --compilers " in doubt["said"]
    )
    assert f"--repetitions {rival['repetitions']}" in doubt["said"]
    for name in ("onnxruntime", "openvino"):
        assert name in doubt["said"].partition("--compilers ")[2].partition(" ")[0], "both have to share rounds"


@pytest.mark.usefixtures("own_studies")
@pytest.mark.parametrize(
    ("foreign", "openvino", "decided"), [(24.0, 115.0, True), (25.0, 115.0, False), (60.0, 200.0, True)]
)
def test_beside_much_load_near_rivals_are_not_told_apart(foreign: float, openvino: float, decided: bool) -> None:
    frame = measured(openvino).assign(foreign_cpu_percent=[foreign, 0.0, foreign])
    table, about = recommend(frame)
    assert table["best"].any() == decided
    if not decided:
        (doubt,) = about["undecided"]
        (rival,) = doubt["rivals"]
        assert rival["loaded"]
        assert rival["repetitions"] is None, "more of them would not tell"
        assert "; measure again while nothing else computes: mlflow-ngraph benchmark " in doubt["said"]


def test_who_is_as_good_for_sure_is_no_rival() -> None:
    table, about = recommend(measured(100.5, noise=0.002, rounds=20))
    assert about["undecided"] == []
    assert table["best"].sum() == 1


@pytest.mark.usefixtures("own_studies")
@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (1200, "1200 repetitions would tell: mlflow-ngraph benchmark "),
        (
            1201,
            "1201 repetitions would tell, if limits.cell_seconds of the study allows so many: mlflow-ngraph benchmark ",
        ),
    ],
)
def test_many_more_repetitions_need_a_limit_that_allows_them(wanted: int, text: str) -> None:
    frame = measured(100.5, noise=0.06, seed=1)
    (rival,) = rivals_of(Comparison(frame, THROUGHPUT), 1)
    answer = {str(name): value for name, value in frame.iloc[1].items()}
    assert " ".join(undecided.measuring([replace(rival, repetitions=wanted)], answer)).startswith(text)


def test_more_rounds_than_said_do_tell() -> None:
    said = [
        rival
        for seed in range(12)
        for rival in rivals_of(Comparison(measured(99.0, 0.04, seed), THROUGHPUT), 1)
        if rival.ratio
    ]
    wanted = int(np.median([rival.repetitions for rival in said if rival.repetitions])) // 10
    told = sum(
        not rivals_of(Comparison(measured(99.0, 0.04, seed, rounds=wanted), THROUGHPUT), 1) for seed in range(12)
    )
    assert told >= 7, "half of them could be undecided by chance"


def test_the_best_of_shared_rounds_leads_whatever_its_own_figure() -> None:
    frame = measured(100.0).assign(throughput=[50.0, 104.0, 100.0])
    rounds = [dict.fromkeys(["0.0", "0.1", "0.2"], value) for value in (1.0, 0.5, 0.4)]
    frame["log_medians"] = [json.dumps(part) for part in rounds]
    assert Comparison(frame, THROUGHPUT).leader([1, 2, 0]) == 2
    table = recommend(frame).table
    assert table.loc[table["best"], "compiler"].tolist() == ["openvino"]
    assert rank(frame, EngineQuestion()).candidates[0].model_id == "m-c"
    (best,) = [value for value in compare(frame, rows=["batch"]).about["values"] if value["best"]]
    assert best["compiler_label"] == "openvino"


def test_who_left_a_race_because_of_another_is_no_rival() -> None:
    """Two rounds were enough to see it, and have an interval that says nothing."""
    frame = measured(60.0).assign(study_id="raced", cell=["i-b1", "a-b1", "b-b1"])
    rounds = [{"0.0": 2.0, "0.1": 2.1}, {"0.0": 1.0, "0.1": 1.0}, {"0.0": 1.4, "0.1": 1.9}]
    frame["log_medians"] = [json.dumps(part) for part in rounds]
    (doubt,) = recommend(frame).about["undecided"]
    assert {rival["row"]["compiler"] for rival in doubt["rivals"]} >= {"openvino"}
    told, about = recommend(frame.assign(beaten_by=["a-b1", None, "a-b1"]))
    assert about["undecided"] == []
    assert told.loc[told["best"], "compiler"].tolist() == ["onnxruntime"]
    without = recommend(frame.assign(beaten_by=["a-b1", None, "a-b1"])[[True, False, True]])
    assert without.about["undecided"], "who beat them is not there, or is not asked for"


def test_a_single_round_ranks_nowhere_and_may_be_better() -> None:
    frame = measured(140.0)
    alone = frame["compiler"] == "openvino"
    frame.loc[alone, ["throughput_log_se", "throughput_df", "throughput_ci_low", "throughput_ci_high"]] = np.nan
    frame.loc[alone, "log_medians"] = '{"0.0": 1.0}'
    (doubt,) = recommend(frame).about["undecided"]
    assert "openvino at batch 1 measured" in doubt["said"]
    assert ", which has no interval; could beat onnxruntime at batch 1" in doubt["said"]
    best = [value["compiler_label"] for value in compare(frame, rows=["batch"]).about["values"] if value["best"]]
    assert best == ["onnxruntime"]
    with pytest.raises(NoAnswerError, match="1 without an interval"):
        rank(frame[alone], EngineQuestion())


def test_figures_without_intervals_are_compared_as_numbers() -> None:
    frame = cells(compiler=NAMES, compiler_label=NAMES, peak_memory_mb=[300.0, 200.0, 201.0], model_id=["a", "b", "c"])
    table, about = recommend(frame, objective="memory")
    assert about["undecided"] == []
    assert table.loc[table["best"], "compiler"].tolist() == ["onnxruntime"]


def test_unsteady_figures_are_marked_and_ratios_of_shared_rounds_are_not() -> None:
    frame = measured(108.0).assign(noise="others used 40 %", unsteady="throughput,rtr")
    shown = compare(frame, rows=["batch"]).about["values"]
    assert all(value["unsteady"] and value["noise"] == "others used 40 %" for value in shown)
    relative = compare(frame, rows=["batch"], relative_to=("compiler", "identity")).about["values"]
    assert not any(value["unsteady"] for value in relative)
    apart = compare(frame.assign(log_medians=""), rows=["batch"], relative_to=("compiler", "identity")).about["values"]
    assert [value["unsteady"] for value in apart] == [False, True, True], "the baseline over itself is 1"


def test_who_is_beaten_for_sure_in_its_own_rounds_is_no_rival_of_another_batch_size() -> None:
    rates = {"identity": 50.0, "onnxruntime": 80.0, "openvino": 100.0}
    frame = Drawn(grid(lambda compiler, batch: rates[compiler], compiler=NAMES, batch=[1, 4]), 0.01, 0.05, 12).draw(0)
    frame = frame.assign(noise="others used 40 %", unsteady="throughput", throughput_log_se=0.2)
    (doubt,) = recommend(frame).about["undecided"]
    assert [rival["row"]["compiler"] for rival in doubt["rivals"]] == ["openvino"], "the same at the other batch size"


def test_of_a_complement_less_that_is_left_is_better() -> None:
    frame = cells(
        compiler=NAMES, compiler_label=NAMES, cpu_reduction=[0.0, 0.5, 0.2], cpu_reduction_log_se=[0.0, 0.02, 0.02],
        cpu_reduction_df=[9.0, 9.0, 9.0],
    )  # fmt: skip
    assert recommend(frame, objective="cpu_reduction").about["undecided"] == []
    noisy = frame.assign(cpu_reduction_log_se=[0.0, 0.2, 0.2])
    (doubt,) = recommend(noisy, objective="cpu_reduction").about["undecided"]
    assert [rival["row"]["compiler"] for rival in doubt["rivals"]] == ["openvino"]


def two_sizes(**columns: Any) -> pd.DataFrame:
    """OpenVINO wins at both batch sizes by the rounds; by figures of their own nobody knows anything about batch size 8."""
    rates = {"identity": 50.0, "onnxruntime": 80.0, "openvino": 100.0}
    frame = Drawn(grid(lambda compiler, batch: rates[compiler], compiler=NAMES, batch=[1, 8]), 0.01, 0.05, 12).draw(0)
    frame["model_id"] = frame["compiler"]
    return frame.assign(throughput_log_se=np.where(frame["batch"] == 8, 0.9, 0.01), **columns)


def test_the_compiler_is_decided_before_the_batch_size(own_studies: Path) -> None:
    table, about = recommend(two_sizes())
    (answer,) = about["answers"]
    assert answer["decided"]
    assert about["undecided"] == []
    assert answer["said"].startswith("resnet18 on xeon: openvino, ")
    assert " times eager at batch " in answer["said"]
    assert "; its batch size is undecided: openvino at batch " in answer["said"]
    file = own_studies / "study" / "study.yaml"
    again = f" mlflow-ngraph benchmark {file} --workloads timm:resnet18 --compilers openvino --batch-sizes 1,8 "
    assert f" could be better; measure again:{again}" in answer["said"]
    assert table.loc[table["best"], "compiler"].tolist() == ["openvino"]


def test_which_of_two_engines_is_undecided_where_each_has_one_batch_size() -> None:
    frame = two_sizes()
    table, about = recommend(frame.assign(model_id=frame["compiler"] + frame["batch"].astype(str)))
    (answer,) = about["undecided"]
    assert answer["said"].startswith("resnet18 on xeon: openvino, "), "that much is known"
    assert not table["best"].any()


def test_the_same_choice_of_another_study_is_no_rival() -> None:
    frame = measured(100.0)
    again = frame[frame["compiler"] == "openvino"].assign(
        study_id="later", cell="c", model_id="m-d", throughput=140.0, log_medians=""
    )
    mine = frame["compiler"] == "openvino"
    others = pd.concat([frame[frame["compiler"] == "identity"], again])
    assert champion.rivals(frame[mine], others, "throughput")[1] == ()
    other = again.assign(compiler_label="openvino[num_streams=1]")
    assert champion.rivals(frame[mine], pd.concat([others, other]), "throughput")[1]


@pytest.mark.parametrize(("openvino", "open_"), [(101.0, True), (110.0, False)])
def test_a_batch_size_of_the_answer_that_barely_loses_in_its_rounds_could_win(openvino: float, open_: bool) -> None:
    """Who beats it by less than counts is not better than the answer's choice, so both would be out of the question."""
    rates = {("onnxruntime", 1): 100.0, ("openvino", 1): openvino, ("onnxruntime", 8): 101.5, ("openvino", 8): 90.0}
    truth = grid(lambda compiler, batch: rates.get((compiler, batch), 50.0), compiler=NAMES, batch=[1, 8])
    frame = Drawn(truth, 0.002, 0.1, 12).draw(0).reset_index(drop=True)
    compared = Comparison(frame, THROUGHPUT)
    places = {(row["compiler"], row["batch"]): place for place, row in frame.iterrows()}
    answer, smaller = places["onnxruntime", 8], places["onnxruntime", 1]
    could = compared.could_win(answer, np.arange(len(frame)))
    assert bool(could[smaller]) == open_
    assert bool(could[places["openvino", 1]]) != open_, "the one or the other"


def test_who_loses_at_every_batch_size_keeps_nobody_from_being_the_champion() -> None:
    frame = two_sizes()
    mine = frame["compiler"] == "openvino"
    cell, rivals = champion.rivals(frame[mine], frame[~mine], "throughput")
    assert rivals == ()
    assert champion.rivals(frame[mine & (frame["cell"] == cell["cell"])], frame[~mine], "throughput")[1]
    theirs = frame["compiler"] == "onnxruntime"
    _, rivals = champion.rivals(frame[theirs], frame[~theirs], "throughput")
    assert {rival.row["compiler"] for rival in rivals} == {"openvino"}


def test_a_figure_without_an_interval_leaves_what_pairs_show() -> None:
    frame = measured(108.0)
    alone = frame["compiler"] == "openvino"
    frame.loc[alone, ["throughput_log_se", "throughput_df", "throughput_ci_low", "throughput_ci_high"]] = np.nan
    table = recommend(frame).table
    assert table.loc[table["best"], "compiler"].tolist() == ["openvino"]
    assert rank(frame, EngineQuestion()).rivals == ()


def test_a_tie_is_an_answer_by_the_smaller_engine_or_less_memory() -> None:
    frame = measured(100.5, noise=0.002, rounds=20)
    for columns, best, why in (
        ({"engine_size_mb": [9.0, 20.0, 10.0]}, "openvino", "the smaller engine"),
        ({"engine_size_mb": [9.0, 10.0, 20.0]}, "onnxruntime", "the smaller engine"),
        ({"engine_size_mb": [9.0, 10.1, 10.0], "peak_memory_mb": [50.0, 99.0, 199.0]}, "onnxruntime", "less memory"),
    ):
        table, about = recommend(frame.assign(**columns))
        (answer,) = about["answers"]
        other = {"openvino": "onnxruntime", "onnxruntime": "openvino"}[best]
        assert answer["said"].startswith(
            f"resnet18 on xeon: either of {best} and {other} (within 3 %): {best}, {why}, "
        )
        assert table.loc[table["best"], "compiler"].tolist() == [best]
        (shown,) = [
            value for value in compare(frame.assign(**columns), rows=["batch"]).about["values"] if value["best"]
        ]
        assert shown["compiler_label"] == best


def test_only_a_study_of_this_home_is_measured_again_by_a_command(own_studies: Path) -> None:
    """Names of models in somebody else's study may mean other models here."""
    frame = measured(100.5, noise=0.06, seed=1).assign(workload="torch:mine#1234", study_id="theirs-1", run_id="r1")
    whose = "; measure again where study theirs-1 was run"
    (doubt,) = recommend(frame).about["undecided"]
    assert whose in doubt["said"]
    study = own_studies / "theirs-1"
    study.mkdir()
    (study / "imported-from").write_text("/media/stick/t.tar: not signed")
    (doubt,) = recommend(frame).about["undecided"]
    assert whose in doubt["said"]
    assert "mlflow-ngraph benchmark" not in doubt["said"]
    (study / "imported-from").unlink()
    (study / "started-in").write_text("/models of mine")
    (doubt,) = recommend(frame).about["undecided"]
    again = (
        f"cd '/models of mine' && mlflow-ngraph benchmark {study}/study.yaml --workloads 'torch:mine#1234' --compilers "
    )
    assert f" would tell: {again}" in doubt["said"]


@pytest.mark.parametrize(
    ("figures", "unsteady", "text"),
    [
        ((2.0, 1.96, 2.05), False, "2.00 [1.96, 2.05] times eager"),
        ((4271.44, 3000.2, 6001.0), True, "~4270 [3000, 6000] times eager"),
        ((9.5, None, None), True, "faster than eager (by how much cannot be told)"),
        ((9.5, None, None), False, "9.50 (no interval) times eager"),
    ],
)
def test_a_gain_says_how_far_it_can_be_trusted(
    figures: tuple[float, float | None, float | None], unsteady: bool, text: str
) -> None:
    assert Gain(1, *figures, unsteady=unsteady).over("eager") == text


def test_a_gain_beside_other_load_says_so() -> None:
    (answer,) = recommend(measured(200.0).assign(noise="others used 60 %", unsteady="throughput,speedup")).about[
        "answers"
    ]
    assert " openvino, ~4." in answer["said"]
    assert "~ beside other load, which slows eager execution most" in answer["said"]


def test_a_rival_says_how_it_was_compared_and_what_it_shares_with_the_answer() -> None:
    frame = raced(
        "throughput",
        ("mine", 1, 100, 0.001, 100),
        ("mine", 8, 90, 0.001, 90),
        ("same", 1, 120, 0.001, 120),
        ("chain", 8, 300, 0.001, 135),
        ("apart", 4, 150, 0.001, None),
        ("mine", 16, 107, 0.001, None),
        ("mine", 32, 106, 0.001, None),
        ("mine", 64, math.nan, math.nan, None),
        ("left", 64, math.nan, math.nan, None),
        verdict=["ok"] * 7 + ["left_out"] * 2,
        model_id=["m-1", "m-2", "m-1", None, None, "m-1", "m-3", None, None],
        engine=["e-1", "e-1", "e-1", None, None, "e-2", "e-3", "e-1", None],
    )
    compared = Comparison(frame, THROUGHPUT)
    told = rivals_of(compared, 0)
    assert [
        (rival.row["compiler"], rival.row["batch"], rival.how, rival.same_choice, rival.same_engine) for rival in told
    ] == [
        ("chain", 8, "chain", False, False),
        ("apart", 4, "apart", False, False),
        ("same", 1, "same rounds", False, False),
        ("mine", 16, "apart", True, True),
        ("mine", 32, "apart", True, False),
        ("left", 64, "", False, False),
        ("mine", 64, "", True, True),
    ]
    ratios = [None if rival.ratio is None else round(rival.ratio, 2) for rival in told]
    assert ratios == [1.35, 1.5, 1.2, 1.07, 1.06, None, None]
    assert {tuple(rival.row) for rival in told} == {undecided.COLUMNS}
    assert rivals_of(compared, 0, [0, 4, 8]) == (told[1], told[5])
    unknown = rivals_of(compared, None)
    assert unknown == tuple(replace(rival, same_choice=False, same_engine=False) for rival in told[5:])


@pytest.mark.parametrize("metric", ["throughput", "latency_p50_ms"])
@pytest.mark.parametrize(
    ("rounds", "repetitions", "freedom", "error", "ratio"),
    [
        (2, 20, 1, 0.015, 1.0), (2, 20, 1, 0.03, 0.99), (4, 1, 3, 0.05, 1.0), (10, 120, 7, 0.2, 1.01),
        (12, 120, 9, 0.1, 0.97), (12, 120, 9, 0.1, 1.05), (3, 30, 2, 0.01, 1.2),
    ],
)  # fmt: skip
def test_as_many_repetitions_as_the_interval_needs(
    metric: str, rounds: int, repetitions: int, freedom: float, error: float, ratio: float
) -> None:
    """It has to exclude either that both are equal or that the rival is better by more than counts."""
    rows = ("answer", 1, 100, 0, None), ("rival", 8, 100 * ratio, error, None)
    frame = raced(metric, *rows, rounds=rounds, repetitions=repetitions)
    frame[f"{metric}_df"] = freedom
    (rival,) = rivals_of(Comparison(frame, METRICS[metric]), 0)
    excludes, fewest = max(math.log(ratio), math.log(1.03 / ratio)), rounds
    while stats.t.ppf(0.975, freedom * (fewest - 1) / (rounds - 1)) * error * math.sqrt(rounds / fewest) > excludes:
        fewest += 1
    assert rival.repetitions is not None
    assert 1 <= rival.repetitions / (repetitions * fewest / rounds) < 1.024


@pytest.mark.parametrize(("rounds", "repetitions"), [(1, 12), (2, 0), (math.nan, 12), (2, math.nan)])
def test_without_rounds_and_repetitions_nobody_knows_how_many_would_tell(rounds: float, repetitions: float) -> None:
    rows = ("answer", 1, 100, 0.001, None), ("rival", 8, 100, 0.05, None)
    frame = raced("throughput", *rows, rounds=rounds, repetitions=repetitions)
    (rival,) = rivals_of(Comparison(frame, THROUGHPUT), 0)
    assert rival.repetitions is None
