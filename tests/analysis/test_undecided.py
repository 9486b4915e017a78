"""Nothing is named the best that another cell may beat, for all that can be told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis.findings import find
from mlflow_ngraph.analysis.ranking import EngineQuestion, Ranking, rank
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.cli.request import overrides
from mlflow_ngraph.objectives import OBJECTIVES, Limit
from mlflow_ngraph.study import parse
from tests.support.tidy import Drawn, cells, grid

NAMES = ["identity", "tvm", "onnxruntime", "openvino"]


def doubtful(verdict: str = "timeout", **columns: list[object]) -> pd.DataFrame:
    """TVM is ok and slow; ONNX Runtime was fast, and did not end well; OpenVINO's outputs are wrong."""
    return cells(
        compiler=NAMES,
        compiler_label=["identity", "tvm", "onnxruntime[opt_level=2]", "openvino"],
        batch=[8] * 4,
        throughput=[0.2, 0.32, 31.1, 99.0],
        verdict=["ok", "ok", verdict, "parity_failed"],
        reason=["", "", "other processes used 90 %", "cosine 0.5"],
        model_id=["m-a", "m-b", "m-c", "m-d"],
        latency_p50_ms=[40.0, 25.0, 0.3, 0.1],
        cpu_percent=[40.0, 40.0, 90.0, 40.0],
        **columns,
    )


@pytest.mark.parametrize("verdict", ["crashed", "oom", "timeout"])
def test_nothing_is_recommended_that_a_noisy_cell_could_beat(verdict: str, own_studies: Path) -> None:
    table, about = recommend(doubtful(verdict))
    assert not table["best"].any()
    (doubt,) = about["undecided"]
    assert (doubt["workload"], doubt["device"]) == ("timm:resnet18", "xeon")
    assert [one["row"]["compiler"] for one in doubt["rivals"]] == ["onnxruntime"]
    said, _, command = doubt["said"].partition("; measure again: ")
    assert said == (
        f"undecided for resnet18 on xeon: onnxruntime[opt_level=2] at batch 8 measured 31.1 samples/s but is {verdict}; "
        "could beat tvm at batch 8 (0.01 [0.01, 0.01] times eager, 0.32 samples/s [0.319, 0.321])"
    )
    assert command == (
        f"mlflow-ngraph benchmark {own_studies}/study/study.yaml --workloads timm:resnet18 "
        "--compilers 'onnxruntime?opt_level=2' --batch-sizes 8 "
        "--precision fp32 --device xeon --mode sync --threads 2"
    )
    asked = parse(
        {"name": "again", **overrides(workloads="timm:resnet18", compilers="onnxruntime?opt_level=2", batch_sizes="8")}
    )
    assert asked.compilers[-1].label == "onnxruntime[opt_level=2]"


def test_nothing_is_recommended_that_a_cell_could_beat_which_there_was_no_time_for() -> None:
    untried = doubtful("left_out").assign(
        throughput=[0.2, 0.32, np.nan, 99.0], reason=["", "", "the time of the study was up", "cosine 0.5"]
    )
    for limits in ([], [Limit("latency_p50_ms", "max", 100.0)]):
        table, about = recommend(untried.assign(latency_p50_ms=[40.0, 25.0, np.nan, 0.1]), limits=limits)
        assert not table["best"].any()
        (doubt,) = about["undecided"]
        assert doubt["said"].startswith(
            "undecided for resnet18 on xeon: onnxruntime[opt_level=2] at batch 8 was left out (the time of the study was up); "
            "could beat tvm at batch 8 (0.01 [0.01, 0.01] times eager, 0.32 samples/s [0.319, 0.321])"
        )
    assert [rival.row["compiler"] for rival in rank(untried, EngineQuestion()).rivals] == ["onnxruntime"]
    json.dumps([rival.to_plain() for rival in rank(untried, EngineQuestion()).rivals])
    earlier = doubtful("ok").assign(throughput=[0.2, 0.32, 0.1, 99.0], started_at=0.0)
    both = pd.concat([earlier, untried], ignore_index=True)
    assert recommend(both).about["undecided"] == [], "it was measured before"
    assert recommend(untried, fleet="maximin").about["undecided"]


def test_what_is_worse_or_breaks_a_limit_or_computes_something_else_is_no_rival() -> None:
    slow = doubtful().assign(throughput=[0.2, 0.32, 0.3, 99.0], throughput_ci_high=[0.21, 0.33, 0.31, 99.0])
    for table, about in (
        recommend(slow),
        recommend(doubtful(), limits=[Limit("throughput", "max", 30.0)]),
        recommend(doubtful("parity_failed")),
        recommend(doubtful(), compilers=["tvm"]),
        recommend(doubtful(), objective="latency", limits=[Limit("latency_p50_ms", "min", 1.0)]),
    ):
        assert about["undecided"] == []
        assert table.loc[table["best"], "compiler"].tolist() == ["tvm"]
    assert recommend(doubtful(), objective="latency").about["undecided"]


def test_the_good_end_of_an_interval_decides() -> None:
    frame = doubtful().assign(
        throughput=[0.2, 0.32, 0.3, 99.0],
        throughput_ci_low=[0.19, 0.31, 0.2, 99.0],
        throughput_ci_high=[0.21, 0.33, 0.4, 99.0],
    )
    assert recommend(frame).about["undecided"]
    assert [rival.row["compiler"] for rival in rank(frame, EngineQuestion()).rivals] == ["onnxruntime"]
    better = frame.assign(
        throughput=[0.2, 0.41, 0.3, 99.0],
        throughput_ci_low=[0.19, 0.409, 0.2, 99.0],
        throughput_ci_high=[0.21, 0.411, 0.4, 99.0],
    )
    assert recommend(better).about["undecided"] == []
    assert rank(better, EngineQuestion()).rivals == ()


@pytest.mark.usefixtures("own_studies")
def test_where_nothing_is_ok_what_is_noisy_is_named() -> None:
    table, about = recommend(doubtful().assign(verdict="timeout"))
    assert table.empty
    assert "nothing else is ok; measure again:" in about["undecided"][0]["said"]


def test_rivals_are_kept_with_a_ranking() -> None:
    ranking = rank(doubtful(), EngineQuestion())
    assert Ranking.from_plain(json.loads(json.dumps(ranking.to_plain()))) == ranking
    assert [one.row["model_id"] for one in ranking.rivals] == ["m-c"]
    assert (
        rank(
            doubtful(),
            EngineQuestion("throughput", (Limit("throughput", "min", 0.1), Limit("cpu_percent", "max", 50.0))),
        ).rivals
        == ()
    )


@pytest.mark.parametrize("rule", ["maximin", "geomean"])
def test_a_choice_for_a_fleet_that_another_one_could_beat(rule: str) -> None:
    speed = {"identity": 1.0, "onnxruntime": 3.0, "openvino": 2.0}
    frame = Drawn(
        grid(lambda device, compiler, batch: 100 * speed[compiler], device=["xeon", "gpu"], compiler=list(speed), batch=[1])
    ).draw(0)  # fmt: skip
    assert recommend(frame, fleet=rule).about["undecided"] == []  # type: ignore[arg-type]
    frame.loc[(frame["compiler"] == "onnxruntime") & (frame["device"] == "gpu"), "verdict"] = "timeout"
    table, about = recommend(frame, fleet=rule)  # type: ignore[arg-type]
    (doubt,) = about["undecided"]
    assert not table["best"].any()
    assert (doubt["device"], [one["row"]["device"] for one in doubt["rivals"]]) == (None, ["gpu"])
    assert "undecided for resnet18: onnxruntime at batch 1" in doubt["said"]
    assert "; could beat openvino at batch 1 (score" in doubt["said"]
    frame.loc[frame["compiler"] == "onnxruntime", ["throughput", "throughput_ci_low", "throughput_ci_high"]] /= 10
    assert recommend(frame, fleet=rule).about["undecided"] == []  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_studies")
def test_findings_say_so() -> None:
    (found,) = [one for one in find(doubtful()) if one.kind == "undecided"]
    assert found.title == "what runs resnet18 fastest on xeon is undecided"
    assert found.text.endswith(
        "could beat tvm at batch 8 (0.01 [0.01, 0.01] times eager, 0.32 samples/s [0.319, 0.321]); measure again:"
    )
    assert re.match(r"mlflow-ngraph benchmark \S+/study.yaml --workloads ", found.command)
    assert found.command_in("--tracking-uri here") == found.command, "measuring reads no results"
    assert [one["row"]["compiler"] for one in found.evidence] == ["onnxruntime"]
    assert not [one for one in find(doubtful("parity_failed")) if one.kind == "undecided"]


def test_a_finding_of_a_study_from_elsewhere_shows_its_results() -> None:
    (found,) = [one for one in find(doubtful()) if one.kind == "undecided"]
    assert found.command.startswith("mlflow-ngraph compare ")
    assert found.command_in("--tracking-uri there").endswith(" --tracking-uri there")


def test_larger_batches_have_not_stopped_paying_while_a_noisy_one_may_pay() -> None:
    def throughput(compiler: str, batch: int) -> float:
        return {1: 100.0, 2: 190.0, 4: 191.0, 8: 192.0}[batch]

    frame = Drawn(grid(throughput, compiler=["identity", "openvino"], batch=[1, 2, 4, 8])).draw(0)
    assert [one.kind for one in find(frame)].count("knee") == 2
    largest = (frame["batch"] == 8) & (frame["compiler"] == "openvino")
    frame.loc[largest, "verdict"] = "timeout"
    assert [one.kind for one in find(frame)].count("knee") == 2
    frame.loc[largest, ["throughput", "throughput_ci_low", "throughput_ci_high"]] *= 2
    assert [one.kind for one in find(frame)].count("knee") == 1


def test_an_objective_is_the_same_metric_for_every_verb() -> None:
    frame = doubtful().assign(**dict.fromkeys(OBJECTIVES.values(), 1.0))
    for name, metric in OBJECTIVES.items():
        assert EngineQuestion(name).metric == metric
        assert recommend(frame, objective=name).about["metric"] == metric
        assert recommend(frame, front=[name]).about["front"] == [metric]
    assert OBJECTIVES["latency"] == "latency_p50_ms"


def test_a_cell_whose_rounds_differ_too_much_leaves_it_open_and_shows_no_interval() -> None:
    frame = cells(
        compiler=["openvino", "tvm"], compiler_label=["openvino", "tvm"], batch=[8, 1], throughput=[300.0, 100.0]
    )
    frame = frame.assign(throughput_log_se=[0.01, 0.9], throughput_df=4.0)
    table, about = recommend(frame)
    assert not table["best"].any()
    assert table["ci_low"].isna().tolist() == [False, True]
    (doubt,) = about["undecided"]
    assert (
        "tvm at batch 1 (0.333 of that, measured at another time; no interval: the rounds differ too much)"
        in doubt["said"]
    )
    (rival,) = doubt["rivals"]
    assert (rival["ratio_ci_low"], rival["ratio_ci_high"]) == (None, None)
