"""Better means better than chance explains, in the direction of the metric."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph_engines import champion
from tests.support.tidy import cells


def two(**columns: Any) -> tuple[Any, Any]:
    """A candidate and a champion of different studies, unless said otherwise."""
    frame = cells(**{"study_id": ["new", "old"], "compiler_label": ["tvm", "openvino"], **columns})
    return dict(frame.iloc[0]), dict(frame.iloc[1])


@pytest.mark.parametrize(("throughput", "better"), [(110.0, True), (100.05, False), (90.0, False)])
def test_more_throughput_wins_if_it_is_significant(throughput: float, better: bool) -> None:
    found = champion.compare(*two(throughput=[throughput, 100.0]), "throughput")
    assert found.better is better
    assert found.ratio == pytest.approx(throughput / 100)
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low < found.ratio < found.ci_high
    assert found.how == "apart"


def test_within_a_study_the_pairs_count() -> None:
    rounds = [json.dumps({f"0.{place}": base + place for place in range(4)}) for base in (1.0, 1.0 + math.log(1.2))]
    candidate, before = two(study_id=["same", "same"], throughput=[110.0, 100.0], log_medians=rounds)
    found = champion.compare(candidate, before, "throughput")
    assert found.how == "same rounds"
    assert found.ratio == pytest.approx(1.2)
    assert "paired" in found.text


def test_less_latency_wins() -> None:
    found = champion.compare(*two(throughput=[110.0, 100.0]), "latency_mean_ms")
    assert found.better
    assert found.ratio == pytest.approx(100 / 110)


def test_a_larger_reduction_of_cpu_use_wins() -> None:
    reduction = {
        "cpu_reduction": [0.5, 0.2],
        "cpu_reduction_log_se": [0.01, 0.01],
        "cpu_reduction_df": [9.0, 9.0],
    }
    found = champion.compare(*two(**reduction), "cpu_reduction")
    assert found.better
    assert found.ratio == pytest.approx(0.5 / 0.8)


def test_without_an_interval_nobody_is_better() -> None:
    found = champion.compare(*two(latency_p99_ms=[1.0, 2.0]), "latency_p99_ms")
    assert found.ratio == pytest.approx(0.5)
    assert found.p_value is None
    assert not found.better
    assert "without an interval" in found.text


def test_an_engine_is_judged_by_what_it_does_best() -> None:
    frame = cells(batch=[1, 8, 32], throughput=[100.0, 300.0, 400.0], verdict=["ok", "ok", "timeout"])
    assert champion.best(frame, "throughput") is not None
    assert champion.best(frame, "throughput")["batch"] == 8  # type: ignore[index]
    assert champion.best(frame, "throughput", 1)["batch"] == 1  # type: ignore[index]
    assert champion.best(frame, "throughput", 2) is None
    assert champion.best(frame, "latency_mean_ms")["batch"] == 1  # type: ignore[index]
    assert champion.best(frame[frame["verdict"] != "ok"], "throughput")["batch"] == 32  # type: ignore[index]
    assert champion.best(pd.DataFrame({"verdict": []}), "throughput") is None


def test_metrics_that_decide_nothing_are_refused() -> None:
    assert champion.check_metric("throughput") == "throughput"
    with pytest.raises(UnknownNameError, match="did you mean 'throughput'"):
        champion.check_metric("througput")
    with pytest.raises(UsageError, match="no engine is better by its repetitions"):
        champion.check_metric("repetitions")
