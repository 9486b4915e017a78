"""What the page shows, from tables with planted truths."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from werkzeug.datastructures import MultiDict

from mlflow_ngraph.errors import NGraphError, UnknownNameError, UsageError
from mlflow_ngraph.ui import answers
from mlflow_ngraph.ui.query import Query
from tests.support.tidy import cells


def asked(text: str = "") -> Query:
    pairs = [part.partition("=")[::2] for part in text.split("&") if part]
    return Query.of(MultiDict(pairs))


def results(**columns: Any) -> pd.DataFrame:
    return cells(**columns).assign(experiment_id="7", experiment="e")


@pytest.fixture
def table() -> pd.DataFrame:
    """Two devices, three compilers, two batch sizes; on the Xeon OpenVINO and TVM are as good as each other at 8."""
    rows = [
        (device, compiler, batch, rate * (0.5 if device == "orin" else 1.0))
        for device in ("xeon", "orin")
        for compiler, rates in {"identity": (100, 200), "openvino": (300, 500), "tvm": (150, 500.1)}.items()
        for batch, rate in zip((1, 8), rates, strict=True)
    ]
    device, compiler, batch, rate = map(list, zip(*rows, strict=True))
    speedup = [value / (200 if size == 8 else 100) / (0.5 if one == "orin" else 1) for one, _, size, value in rows]
    return results(
        device=device, compiler=compiler, compiler_label=compiler, batch=batch, throughput=rate, speedup=speedup
    )


def test_options_say_what_there_is(table: pd.DataFrame) -> None:
    told = answers.options(table)
    assert told["devices"] == ["orin", "xeon"]
    assert told["compilers"] == ["identity", "openvino", "tvm"]
    assert told["batches"] == [1, 8]
    assert told["workloads"] == [{"ref": "timm:resnet18", "label": "resnet18", "family": "ResNet"}]
    assert told["experiments"] == [{"id": "7", "name": "e"}]
    names = {metric["name"] for metric in told["metrics"]}
    assert {"throughput", "speedup", "latency_mean_ms"} <= names
    assert "energy_per_sample_j" not in names, "a metric that nothing has is offered"
    assert not [name for name in names if name.endswith("_ci_low")]


def test_an_empty_server_has_nothing_to_choose() -> None:
    told = answers.options(results(device=["xeon"]).iloc[:0])
    assert (told["cells"], told["devices"], told["newest"], told["metrics"]) == (0, [], None, [])


def test_curves_have_the_recorded_numbers_with_their_intervals(table: pd.DataFrame) -> None:
    told = answers.comparison(table, asked("device=xeon"))
    curves = {one["compiler_label"]: one for one in told["series"]}
    assert set(curves) == {"identity", "openvino", "tvm"}
    openvino = curves["openvino"]
    assert (openvino["batch"], openvino["value"]) == ([1, 8], [300.0, 500.0])
    here = table[(table["device"] == "xeon") & (table["compiler"] == "openvino")]
    assert openvino["low"] == here["throughput_ci_low"].tolist()
    assert openvino["high"] == here["throughput_ci_high"].tolist()


def test_a_reciprocal_has_the_interval_of_what_it_comes_from(table: pd.DataFrame) -> None:
    told = answers.comparison(table, asked("device=xeon&metric=latency_mean_ms"))
    curve = next(one for one in told["series"] if one["compiler_label"] == "openvino")
    here = table[(table["device"] == "xeon") & (table["compiler"] == "openvino") & (table["batch"] == 8)].iloc[0]
    assert curve["low"][1] == pytest.approx(8e3 / here["throughput_ci_high"])
    assert curve["high"][1] == pytest.approx(8e3 / here["throughput_ci_low"])


def test_the_best_and_what_cannot_be_told_from_it_is_marked_within_each_device(table: pd.DataFrame) -> None:
    told = answers.comparison(table, asked("batch=8"))
    marks = {(one["device"], one["compiler_label"]): (one["best"], one["tied"]) for one in told["table"]}
    assert marks["xeon", "tvm"] == (True, False)
    assert marks["xeon", "openvino"] == (False, True)
    assert marks["xeon", "identity"] == (False, False)
    assert marks["orin", "tvm"] == (True, False)
    across = answers.comparison(table, asked("batch=8&best=workload"))
    assert [(one["device"], one["compiler_label"]) for one in across["table"] if one["best"]] == [("xeon", "tvm")]


def test_ratios_need_not_show_the_baseline(table: pd.DataFrame) -> None:
    told = answers.comparison(table, asked("compiler=openvino&batch=1"))
    assert told["baseline"] == "identity"
    assert {(one["device"], one["compiler_label"]): one["value"] for one in told["ratios"]} == pytest.approx(
        {("xeon", "openvino"): 3.0, ("orin", "openvino"): 3.0}
    )
    assert all(one["low"] < one["value"] < one["high"] for one in told["ratios"])
    other = answers.comparison(table, asked("compiler=openvino&batch=1&baseline=tvm"))
    assert [one["value"] for one in other["ratios"]] == pytest.approx([2.0, 2.0])


def test_without_identity_there_is_no_baseline_unless_one_is_chosen(table: pd.DataFrame) -> None:
    compiled = table[table["compiler"] != "identity"]
    assert answers.comparison(compiled, asked())["baseline"] is None
    assert answers.comparison(compiled, asked())["ratios"] == []
    with pytest.raises(UsageError, match=r"baseline 'identity'.*openvino, tvm"):
        answers.comparison(compiled, asked("baseline=identity"))


def test_flags_tell_compilers_apart() -> None:
    labels = ["identity", "openvino", "openvino(streams=2)"]
    frame = results(compiler=["identity", "openvino", "openvino"], compiler_label=labels, throughput=[1.0, 2.0, 3.0])
    told = answers.comparison(frame, asked("compiler=openvino"))
    assert [one["compiler_label"] for one in told["series"]] == ["openvino"]


def test_what_is_not_ok_is_counted_and_named_and_shown_on_demand(table: pd.DataFrame) -> None:
    spoiled = table.copy()
    bad = (spoiled["device"] == "xeon") & (spoiled["compiler"] == "tvm") & (spoiled["batch"] == 8)
    spoiled.loc[bad, ["verdict", "reason"]] = ["timeout", "spread"]
    told = answers.comparison(spoiled, asked("batch=8"))
    assert told["left_out"] == {"timeout": 1}
    (missing,) = told["missing"]
    assert (missing["device"], missing["compiler_label"], missing["verdict"]) == ("xeon", "tvm", "timeout")
    assert ("xeon", "tvm") not in {(one["device"], one["compiler_label"]) for one in told["table"]}
    shown = answers.comparison(spoiled, asked("batch=8&all=1"))
    assert shown["left_out"] == {}
    row = next(one for one in shown["table"] if (one["device"], one["compiler_label"]) == ("xeon", "tvm"))
    assert (row["verdict"], row["best"]) == ("timeout", False)


def test_the_batch_size_is_the_one_at_which_models_are_fastest(table: pd.DataFrame) -> None:
    assert answers.comparison(table, asked())["batch"] == 8
    slower = table.assign(throughput=table["throughput"] / table["batch"] ** 2)
    assert answers.comparison(slower, asked())["batch"] == 1
    assert answers.comparison(table.assign(verdict="failed"), asked())["batch"] == 1
    with pytest.raises(UsageError, match="batch size 3: there is 1, 8"):
        answers.comparison(table, asked("batch=3"))


def test_a_metric_that_nothing_has_gives_empty_answers(table: pd.DataFrame) -> None:
    told = answers.comparison(table, asked("metric=energy_per_sample_j"))
    assert (told["series"], told["table"], told["ratios"]) == ([], [], [])


def test_too_many_workloads_are_cut_and_counted() -> None:
    names = [f"net{number:02}" for number in range(answers.MOST_WORKLOADS + 5)]
    told = answers.comparison(results(workload=names, label=names), asked())
    assert told["workloads"] == {"shown": answers.MOST_WORKLOADS, "fitting": len(names)}
    assert {one["label"] for one in told["series"]} == set(names[: answers.MOST_WORKLOADS])


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("device=mars", UnknownNameError, "unknown device 'mars'.*known: orin, xeon"),
        ("metric=speed", UnknownNameError, "unknown metric 'speed'"),
        ("batch=many", UsageError, "batch: expected a whole number, found 'many'"),
        ("best=all", UnknownNameError, "unknown group"),
    ],
)
def test_wrong_questions_are_one_line(table: pd.DataFrame, text: str, error: type[NGraphError], says: str) -> None:
    with pytest.raises(error, match=says):
        answers.comparison(table, asked(text))


def test_choices_that_exclude_each_other_say_so() -> None:
    frame = results(device=["xeon", "orin"], compiler=["tvm", "openvino"], compiler_label=["tvm", "openvino"])
    with pytest.raises(UsageError, match="nothing fits all of this together"):
        answers.comparison(frame, asked("device=xeon&compiler=openvino"))


def test_findings_are_told_in_words(table: pd.DataFrame) -> None:
    spoiled = table.copy()
    bad = (spoiled["compiler"] == "tvm") & (spoiled["device"] == "xeon")
    spoiled.loc[bad, ["verdict", "reason"]] = ["failed", "out of registers"]
    told = answers.findings(spoiled, asked())
    assert any("tvm" in one["title"] + one["text"] for one in told["findings"])
    assert all(one["command"].startswith("mlflow-ngraph ") for one in told["findings"])
    assert answers.findings(spoiled, asked("device=orin"))["findings"] == [] or told["more"] == 0
