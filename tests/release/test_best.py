"""The answer to a question is what a walk over the whole table finds."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph import addresses, objectives
from mlflow_ngraph.analysis import results
from mlflow_ngraph.analysis.ranking import EngineQuestion, Ranking, rank
from mlflow_ngraph.compilers.base import Availability
from mlflow_ngraph.compilers.openvino.adapter import OpenVINO
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.errors import EngineError, NoAnswerError, UnknownNameError, UsageError
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.objectives import OBJECTIVES, Limit
from mlflow_ngraph.release import best
from mlflow_ngraph.release.best import answer
from tests.support.logged import Logged
from tests.support.tidy import cells

ROWS = 400


@cache
def invented(seed: int) -> pd.DataFrame:
    """Many cells of one model in several studies, with figures that are missing here and there."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [values[index] for index in rng.integers(len(values), size=ROWS)]

    def figures(mean: float) -> list[float]:
        found = mean * rng.lognormal(0, 0.5, ROWS)
        found[rng.random(ROWS) < 0.05] = np.nan
        return [float(value) for value in np.round(found, 1)]

    compilers = some(["openvino", "onnxruntime", "tvm"])
    frame = cells(
        study_id=some(["one", "two", "three"]),
        compiler=compilers,
        compiler_label=compilers,
        device=some(["xeon", "host", "orin"]),
        precision=some(["fp32", "bf16"]),
        batch=some([1, 2, 4, 8]),
        verdict=some(["ok", "ok", "ok", "timeout", "parity_failed"]),
        started_at=[float(value) for value in rng.integers(1_000, size=ROWS)],
        finished_at=[1.0] * ROWS,
        throughput=figures(100),
        latency_p50_ms=figures(10),
        latency_p99_ms=figures(12),
        cpu_percent=figures(50),
        peak_memory_mb=figures(300),
        energy_per_sample_j=figures(1),
        engine_size_mb=figures(40),
    )
    frame["model_id"] = [f"m-{index:032x}" if rng.random() < 0.9 else None for index in range(ROWS)]
    return frame


def limits_of(values: Mapping[str, float]) -> tuple[Limit, ...]:
    return tuple(objectives.limits(values))


def walked(frame: pd.DataFrame, asked: EngineQuestion) -> list[dict[Hashable, Any]]:
    """The cells that count, best first, found row by row."""
    newest: dict[str, dict[Hashable, Any]] = {}
    for row in frame.to_dict("records"):
        if row["cell"] not in newest or row["started_at"] >= newest[row["cell"]]["started_at"]:
            newest[row["cell"]] = row
    metric = asked.metric
    sign = 1 if CELL_METRICS[metric].better == "lower" else -1

    def keeps(row: Mapping[Hashable, Any]) -> bool:
        return all(
            row[limit.metric] >= limit.value if limit.bound == "min" else row[limit.metric] <= limit.value
            for limit in asked.limits
        )

    kept = [
        row
        for row in newest.values()
        if row["verdict"] == "ok" and isinstance(row["model_id"], str) and row[metric] == row[metric] and keeps(row)
    ]
    return sorted(kept, key=lambda row: (sign * row[metric], -row["started_at"], row["model_id"]))


@pytest.mark.parametrize("objective", [*OBJECTIVES, "latency_p99_ms", "speedup"])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_latency_ms": 12.0},
        {"max_cpu_percent": 45.0, "max_memory_mb": 280.0},
        {"max_latency_ms": 15.0, "min_throughput": 90.0},
    ],
)
def test_cells_are_in_the_order_that_a_walk_finds(objective: str, limits: dict[str, float]) -> None:
    for seed in range(2):
        frame, asked = invented(seed), EngineQuestion(objective, limits_of(limits))
        ranking = Ranking.from_plain(json.loads(json.dumps(rank(frame, asked).to_plain())))
        found, left_out = ranking.candidates, ranking.left_out
        expected = walked(frame, asked)
        # What is as good for sure may lead by its size.
        lead = next(row for row in expected if row["model_id"] == found[0].model_id)
        assert lead[asked.metric] == pytest.approx(expected[0][asked.metric], rel=0.03)
        expected = [lead, *(row for row in expected if row is not lead)]
        assert [one.model_id for one in found] == [row["model_id"] for row in expected]
        assert [one.value for one in found] == [row[asked.metric] for row in expected]
        assert sum(left_out.values()) + len(found) == frame["cell"].nunique()


def test_of_a_cell_the_newest_result_counts_even_where_it_is_worse() -> None:
    frame = cells(
        started_at=[1.0, 2.0], study_id=["a", "b"], throughput=[100.0, 50.0], verdict=["ok", "timeout"],
        model_id=["m-a", "m-b"],
    )  # fmt: skip
    with pytest.raises(NoAnswerError, match="no cell that fits is ok and has an engine: 1 timeout"):
        rank(frame, EngineQuestion())


def test_bounds_that_nothing_keeps_are_said_one_by_one() -> None:
    frame = cells(
        batch=[1, 2], throughput=[100.0, 200.0], latency_p99_ms=[10.0, 20.0], cpu_percent=[90.0, 50.0],
        model_id=["m-a", "m-b"],
    )  # fmt: skip
    with pytest.raises(NoAnswerError) as error:
        rank(
            frame,
            EngineQuestion(
                "throughput", limits_of({"max_latency_ms": 15, "max_cpu_percent": 60, "max_memory_mb": 100})
            ),
        )
    said = str(error.value)
    assert "--max-latency-ms 15 alone is kept by 1 of 2, latency_p99_ms is 10 at best" in said
    assert "--max-cpu-percent 60 alone is kept by 1 of 2, cpu_percent is 50 at best" in said
    assert "--max-memory-mb 100 alone is kept by 0 of 2, peak_memory_mb was not measured" in said


def test_objectives_are_metrics_with_a_better_side() -> None:
    with pytest.raises(UnknownNameError, match="unknown objective 'speed': did you mean 'speedup'"):
        assert EngineQuestion("speed").metric
    with pytest.raises(UsageError, match="neither a high nor a low clock_mhz is better"):
        assert EngineQuestion("clock_mhz").metric


def test_models_are_not_compared_with_each_other() -> None:
    frame = cells(workload=["timm:resnet18", "timm:resnet50"], label=["resnet18", "resnet50"], model_id=["m-a", "m-b"])
    with pytest.raises(UsageError, match="name one with --workloads: timm:resnet18, timm:resnet50"):
        rank(frame, EngineQuestion())


@pytest.fixture
def table(logged: Logged) -> pd.DataFrame:
    """Without the baseline, which fits every machine that has torch."""
    found = results.load(logged.uri, columns=EngineQuestion().columns(), cache=False)
    # Which of them was faster in the rounds that they share is a matter of chance.
    return found[found["compiler"] != "identity"].assign(log_medians=None)


@pytest.fixture
def servers(logged: Logged) -> dict[str, str]:
    return {addresses.shown(logged.uri): logged.uri}


@pytest.mark.parametrize("objective", ["throughput", "latency", "memory"])
def test_the_first_whose_engine_fits_is_the_answer(
    logged: Logged, table: pd.DataFrame, servers: dict[str, str], objective: str
) -> None:
    asked = EngineQuestion(objective)
    found = answer(rank(table, asked), servers)
    best = walked(table, asked)[0]
    assert (found.chosen.model_id, found.chosen.row["batch"]) == (best["model_id"], best["batch"])
    assert found.chosen.value == best[asked.metric]
    assert found.remote.model_id == best["model_id"]
    assert found.manifest.spec.compiler == best["compiler"]
    assert (found.passed_over, found.considered) == ((), 4)
    assert found.next_best is not None
    assert found.next_best.model_id != best["model_id"]
    figure = found.chosen.figure("throughput")
    assert figure is not None
    assert figure[0] == best["throughput"]


def test_what_cannot_run_here_is_passed_over_without_asking_for_it(
    logged: Logged, table: pd.DataFrame, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table.copy()
    table.loc[table["compiler"] == "openvino", "throughput"] *= 1e6
    gone = classmethod(lambda cls: Availability(False, None, "no module named openvino", "pip install openvino"))
    monkeypatch.setattr(OpenVINO, "availability", gone)
    looked: list[str] = []
    look = best._look

    def noted(model_id: str, *about: Any) -> Any:
        looked.append(model_id)
        return look(model_id, *about)

    monkeypatch.setattr(best, "_look", noted)
    found = answer(rank(table, EngineQuestion()), servers)
    assert found.chosen.row["compiler"] == "onnxruntime"
    assert looked == [logged.models["onnxruntime"]]
    assert [(one.row["compiler"], one.row["batch"]) for one, _ in found.passed_over] == [
        (row["compiler"], row["batch"]) for row in walked(table, EngineQuestion())[:2]
    ]
    assert {reason for _, reason in found.passed_over} == {
        "openvino cannot run here: no module named openvino (pip install openvino)"
    }


def test_an_engine_that_is_gone_from_the_server_is_passed_over(
    logged: Logged, table: pd.DataFrame, servers: dict[str, str]
) -> None:
    table = table.copy()
    gone = table["compiler"] == "openvino"
    table.loc[gone, "throughput"] *= 1e6
    table.loc[gone, "model_id"] = f"m-{0:032x}"
    found = answer(rank(table, EngineQuestion()), servers)
    assert found.chosen.model_id == logged.models["onnxruntime"]
    assert all("cannot find models:/m-0000" in reason for _, reason in found.passed_over)


def test_where_nothing_fits_it_is_said_why_and_what_to_do(
    logged: Logged, table: pd.DataFrame, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "isa", lambda: "riscv64 v")
    monkeypatch.setattr("mlflow_ngraph.compilers.onnxruntime.adapter.isa", lambda: "riscv64 v")
    gone = classmethod(lambda cls: Availability(False, None, "no module named openvino", "pip install openvino"))
    monkeypatch.setattr(OpenVINO, "availability", gone)
    with pytest.raises(EngineError) as error:
        answer(rank(table, EngineQuestion()), servers)
    said = str(error.value)
    assert said.startswith("no engine of 4 that were measured fits this machine: ")
    assert "2 of openvino: openvino cannot run here: no module named openvino" in said
    assert "2 of onnxruntime: it was compiled for other instruction sets: here lacks x86_64" in said
    assert "build it here: mlflow-ngraph benchmark --workloads" in said
