"""Metrics that a study declares: checked when it is read, computed beside the others, compared like them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import study
from mlflow_ngraph.analysis import compare, significance
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.errors import StudyError, UsageError
from mlflow_ngraph.execute import formulas
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.tables.results import from_record as table_of
from tests.support.records import study_record

MINIMAL = {"workloads": ["timm:resnet18", "deit-tiny"], "compilers": ["openvino"], "batch_sizes": [1]}
TCR: dict[str, Any] = {
    "expression": "saved_kb * throughput",
    "unit": "kB/s",
    "constants": {"saved_kb": {"timm:resnet18": 12.5, "deit-tiny": 20.0}},
}


def test_short_and_long_forms() -> None:
    found = study.parse({**MINIMAL, "metrics": {"tcr": TCR, "per_watt": "throughput / power_w"}})
    assert found.metrics["per_watt"].expression == "throughput / power_w"
    assert (found.metrics["tcr"].better, found.metrics["tcr"].unit) == ("higher", "kB/s")
    assert study.parse(found.model_dump(mode="json")) == found


def test_they_do_not_change_what_is_measured() -> None:
    assert study.parse({**MINIMAL, "metrics": {"tcr": TCR}}).digest() == study.parse(MINIMAL).digest()


@pytest.mark.parametrize("name", ["device", "throughput", "speedup_ci_low", "ase_log_se", "experiment", "anything_df"])
def test_no_column_of_the_results_can_be_declared(name: str) -> None:
    with pytest.raises(StudyError, match="this name is taken"):
        study.parse({**MINIMAL, "metrics": {name: "throughput * 2"}})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            {"tcr": "troughput * 2"},
            "metrics.tcr: unknown name 'troughput' in 'troughput * 2': did you mean 'throughput'?",
        ),
        ({"tcr": "throughput *"}, "metrics.tcr: 'throughput *' is no formula"),
        ({"tcr": "__import__('os')"}, "metrics.tcr: unknown function '__import__'"),
        ({"throughput": "batch"}, "this name is taken"),
        ({"device": "batch"}, "this name is taken"),
        ({"tcr_ci_low": "batch"}, "this name is taken"),
        ({"TCR/s": "batch"}, "a name has small letters"),
        ({"tcr": {"expression": "batch", "constants": {"batch": 1}}}, "constant 'batch': choose a name"),
        ({"tcr": {"expression": "batch", "constant": {}}}, "unknown key: did you mean 'constants'?"),
        (
            {"tcr": {**TCR, "constants": {"saved_kb": {"timm:resnet18": 1, "deit-tny": 2}}}},
            "constant 'saved_kb' has no number for 'deit-tiny'; 'deit-tny' is no workload of the study",
        ),
    ],
)
def test_mistakes_are_found_when_the_study_is_read(metrics: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError) as found:
        study.parse({**MINIMAL, "metrics": metrics}, "mine.yaml")
    assert message in str(found.value)
    assert str(found.value).startswith("mine.yaml: ")


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    """A study of two workloads that declares metrics."""
    made = study_record(tmp_path)
    first, second = (choice["ref"] for choice in made.study["workloads"])
    declared = {
        "tcr": {**TCR, "constants": {"saved_kb": {first: 12.5, second: 20.0}}},
        "seconds_a_sample": {"expression": "1 / throughput", "unit": "s", "better": "lower"},
        "per_percent": "throughput / cpu_percent",
        "per_parameter": "1e9 * throughput / parameters",
        "hill": "abs(throughput - 100)",
        "hopeless": "throughput / (batch - batch)",
    }
    whole = study.parse({**made.study, "metrics": declared})
    made.study = whole.model_dump(mode="json")
    formulas.add(made, made.lanes.values())
    return made


def test_constants_and_intervals(record: StudyRecord) -> None:
    for lane in record.lanes.values():
        saved = 12.5 if lane.lane.label == "resnet18" else 20.0
        for cell in lane.cells.values():
            numbers = cell.metrics
            assert "hopeless" not in numbers
            if "throughput" not in numbers:
                assert "tcr" not in numbers
                continue
            for end in ("", "_ci_low", "_ci_high"):
                assert numbers[f"tcr{end}"] == pytest.approx(saved * numbers[f"throughput{end}"])
            assert numbers["seconds_a_sample_ci_low"] == pytest.approx(1 / numbers["throughput_ci_high"])
            assert numbers["per_parameter_ci_low"] < numbers["per_parameter"] < numbers["per_parameter_ci_high"]
            assert numbers["per_percent"] == pytest.approx(numbers["throughput"] / numbers["cpu_percent"])
            assert "per_percent_ci_low" not in numbers


def test_no_interval_where_the_formula_turns_round_within_it(record: StudyRecord) -> None:
    (cell,) = [cell for lane in record.lanes.values() for cell in lane.cells.values()
               if lane.lane.compiler == "identity" and lane.lane.label == "resnet18" and cell.batch == 1]  # fmt: skip
    assert cell.metrics["throughput"] == pytest.approx(100)
    assert "hill" in cell.metrics
    assert "hill_ci_low" not in cell.metrics


def test_they_are_compared_and_recommended_like_others(record: StudyRecord) -> None:
    frame = table_of(record)
    assert metrics_of(frame)["tcr"].unit == "kB/s"
    assert json.loads(frame["custom_metrics"].iloc[0])["seconds_a_sample"]["better"] == "lower"
    table, about = compare.compare(frame, metric="tcr", workloads=["resnet18"], batch_sizes=[1], rows=["label"])
    assert about["unit"] == "kB/s"
    plain = compare.compare(frame, metric="throughput", workloads=["resnet18"], batch_sizes=[1], rows=["label"]).table
    assert table.to_numpy() == pytest.approx(12.5 * plain.to_numpy())
    assert all(value["ci_low"] < value["value"] < value["ci_high"] for value in about["values"])
    best = recommend(frame, objective="seconds_a_sample", workloads=["resnet18"]).table
    assert best.loc[best["best"], "compiler_label"].tolist() == ["openvino"]
    rows = frame[frame["throughput"].notna()].reset_index(drop=True)
    assert significance.figures(rows, "tcr").error == pytest.approx(significance.figures(rows, "throughput").error)


def test_nothing_is_recommended_where_the_figure_in_the_formula_has_no_interval(record: StudyRecord) -> None:
    frame = table_of(record)
    lost = [name for name in map(str, frame.columns) if name.startswith(("tcr_", "throughput_ci"))]
    unknown = frame.assign(**dict.fromkeys(lost, float("nan")))
    found = recommend(unknown, objective="tcr", workloads=["resnet18"])
    assert not found.table["best"].any()
    assert "which has no interval" in found.about["answers"][0]["said"]
    # Of several figures there is none anyway, and they are compared as they stand.
    assert recommend(unknown, objective="per_percent", workloads=["resnet18"]).table["best"].any()


def test_a_metric_without_any_value_is_known(record: StudyRecord) -> None:
    frame = table_of(record)
    assert compare.compare(frame, metric="hopeless", workloads=["resnet18"]).table.empty
    with pytest.raises(UsageError, match=r"none of these \d+ cells has hopeless"):
        recommend(frame, objective="hopeless")


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_figures_that_have_no_ratios_are_not_ranked(record: StudyRecord, factor: float) -> None:
    frame = table_of(record)
    with pytest.raises(UsageError, match=r"tcr is zero or negative in \d+ cells: only positive figures can be ranked"):
        recommend(frame.assign(tcr=factor * frame["tcr"]), objective="tcr")
