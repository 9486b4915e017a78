"""Recommendations are what a patient person would find by going through all cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_ngraph.analysis import serving_rates
from mlflow_ngraph.analysis.recommend import COLUMNS, on_front, recommend
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.objectives import Limit
from tests.support.tidy import Drawn, cells, grid

METRICS = ("throughput", "latency_p99_ms", "cpu_percent", "peak_memory_mb", "engine_size_mb", "energy_per_sample_j")
LOWER = {"throughput": False, **dict.fromkeys(METRICS[1:], True)}
CONFIGURATION = ("compiler_label", "precision", "mode", "batch")


def some_cells(rng: np.random.Generator) -> pd.DataFrame:
    """Cells of two workloads on two devices, with numbers, verdicts and holes at random; coarse, so that some are equal."""
    index = pd.MultiIndex.from_product(
        [["timm:a", "timm:b"], ["xeon", "orin"], ["identity", "ort", "ov"], ["fp32", "bf16"], [1, 8]],
        names=["workload", "device", "compiler", "precision", "batch"],
    ).to_frame(index=False)
    index = index[rng.random(len(index)) < 0.9]
    columns: dict[str, Any] = {name: index[name].tolist() for name in index}
    count = len(index)
    for name in METRICS:
        values = np.round(rng.uniform(1, 10, count), 1)
        values[rng.random(count) < 0.1] = np.nan
        columns[name] = values.tolist()
    columns["verdict"] = rng.choice(["ok", "ok", "ok", "ok", "timeout", "failed"], count).tolist()
    columns["compiler_label"] = columns["compiler"]
    columns["label"] = [name.removeprefix("timm:") for name in columns["workload"]]
    return cells(**columns)


def some_limits(rng: np.random.Generator) -> list[Limit]:
    names = rng.choice(METRICS, int(rng.integers(0, 4)), replace=False)
    return [Limit(str(name), "max" if LOWER[str(name)] else "min", float(rng.uniform(2, 9))) for name in names]


def keeps(row: Any, metric: str, limits: list[Limit], verdict: str = "ok") -> bool:
    if row["verdict"] != verdict or math.isnan(row[metric]):
        return False
    for limit in limits:
        number = row[limit.metric]
        if math.isnan(number) or (number > limit.value if limit.bound == "max" else number < limit.value):
            return False
    return True


def better(one: float, other: float, metric: str) -> bool:
    return one < other if LOWER[metric] else one > other


def beats(one: float, other: float, metric: str) -> bool:
    """By more than 3 %."""
    return better(one, other, metric) and abs(one - other) > 0.03 * other


def brute_force(rows: list[Any], metric: str, limits: list[Limit]) -> dict[tuple[str, str], list[Any]]:
    """All cells that keep the limits by workload and device, the best number first."""
    found: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if keeps(row, metric, limits):
            found.setdefault((row["workload"], row["device"]), []).append(row)
    for group in found.values():
        group.sort(key=lambda row: row[metric] if LOWER[metric] else -row[metric])
    return found


def good_end(row: Any, metric: str) -> float:
    """The best that a figure can be."""
    ends = [row[name] for name in (metric, f"{metric}_ci_low", f"{metric}_ci_high") if name in row]
    known = [end for end in ends if not math.isnan(end)]
    return float(min(known) if LOWER[metric] else max(known))


def brute_doubts(
    rows: list[Any], metric: str, limits: list[Limit], expected: dict[tuple[str, str], list[Any]]
) -> dict[tuple[str, str], list[str]]:
    """The cells that ran into a time-out and could beat the best one, by workload and device, what looks best first."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row[metric] if LOWER[metric] else -row[metric]):
        key = row["workload"], row["device"]
        best = expected.get(key)
        if keeps(row, metric, limits, "timeout") and (
            best is None or beats(good_end(row, metric), best[0][metric], metric)
        ):
            found.setdefault(key, []).append(row["cell"])
    return found


def brute_front(group: list[Any], names: list[str]) -> set[str]:
    known = [row for row in group if not any(math.isnan(row[name]) for name in names)]
    found = set()
    for row in known:
        beaten = any(
            all(not better(row[name], other[name], name) for name in names)
            and any(better(other[name], row[name], name) for name in names)
            for other in known
        )
        if not beaten:
            found.add(row["cell"])
    return found


def brute_fleet(rows: list[Any], metric: str, limits: list[Limit], rule: str) -> dict[str, tuple[float, set[Any]]]:
    """For each workload the best score, and all choices that have it."""
    found: dict[str, tuple[float, set[Any]]] = {}
    for workload in {row["workload"] for row in rows}:
        devices = {row["device"] for row in rows if row["workload"] == workload}
        fitting = [row for row in rows if row["workload"] == workload and keeps(row, metric, limits)]
        best = {}
        for device in devices:
            numbers = [row[metric] for row in fitting if row["device"] == device]
            if numbers:
                best[device] = min(numbers) if LOWER[metric] else max(numbers)
        scores = {}
        for choice in {tuple(row[name] for name in CONFIGURATION) for row in fitting}:
            own = {row["device"]: row[metric] for row in fitting if tuple(row[n] for n in CONFIGURATION) == choice}
            if set(own) != devices:
                continue
            shares = [best[one] / own[one] if LOWER[metric] else own[one] / best[one] for one in devices]
            scores[choice] = min(shares) if rule == "maximin" else math.prod(shares) ** (1 / len(shares))
        if scores:
            top = max(scores.values())
            found[workload] = top, {choice for choice, score in scores.items() if score == pytest.approx(top)}
    return found


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("part", range(2))
def test_it_is_what_brute_force_finds(part: int) -> None:
    """20 sets of limits on five tables each."""
    for number in range(20):
        rng = np.random.default_rng([part, number])
        if number % 4 == 0:
            frame = some_cells(rng)
            rows = frame.to_dict("records")
        limits, metric = some_limits(rng), str(rng.choice(METRICS))
        front = [str(name) for name in rng.choice(METRICS, 3, replace=False)]
        expected = brute_force(rows, metric, limits)
        table, about = recommend(frame, objective=metric, limits=limits, front=front)
        groups = {(str(one), str(other)): group for (one, other), group in table.groupby(["workload", "device"])}
        assert set(groups) == set(expected)
        missing = {(one["workload"], one["device"]) for one in about["nothing"]}
        assert missing == {(row["workload"], row["device"]) for row in rows} - set(expected)
        doubted = brute_doubts(rows, metric, limits, expected)
        found = {(one["workload"], one["device"]): one["rivals"] for one in about["undecided"]}
        assert {key: [one["row"]["cell"] for one in rivals] for key, rivals in found.items()} == doubted
        for key, group in groups.items():
            assert set(group["cell"]) == {row["cell"] for row in expected[key]}
            assert group["value"].tolist() == [row[metric] for row in expected[key]]
            assert group["rank"].tolist() == list(range(1, len(group) + 1))
            equal = {row["cell"] for row in expected[key] if row[metric] == expected[key][0][metric]}
            assert equal <= set(group.loc[(group["rank"] == 1) | group["tied"], "cell"])
            assert group["best"].tolist() == [place == 0 and key not in doubted for place in range(len(group))]
            assert set(group.loc[group["on_front"], "cell"]) == brute_front(expected[key], front)
        if number % 5 == 0:
            check_fleet(frame, rows, metric, limits, ("maximin", "geomean")[number // 5 % 2])


def check_fleet(frame: pd.DataFrame, rows: list[Any], metric: str, limits: list[Limit], rule: Any) -> None:
    fleet = recommend(frame, objective=metric, limits=limits, fleet=rule).table
    choices = brute_fleet(rows, metric, limits, rule)
    assert set(fleet["workload"]) == set(choices)
    for workload, group in fleet[fleet["best"]].groupby("workload"):
        score, names = choices[str(workload)]
        assert group["score"].to_numpy() == pytest.approx(score)
        assert set(map(tuple, group[list(CONFIGURATION)].to_numpy().tolist())) <= names


def drawn() -> Drawn:
    speed = {"identity": 1.0, "onnxruntime": 1.9995, "openvino": 2.0, "tvm": 1.5}

    def throughput(device: str, compiler: str, batch: int) -> float:
        factor = 3.0 if device == "gpu" else 1.0
        return 100 * factor * speed[compiler] * batch**0.5

    return Drawn(grid(throughput, device=["xeon", "gpu"], compiler=list(speed), batch=[1, 8]))


def test_the_best_what_is_as_good_and_what_the_others_cost() -> None:
    table, about = recommend(drawn().draw(1), batch_sizes=[8])
    assert tuple(table.columns) == COLUMNS
    assert (about["metric"], about["unit"], about["nothing"]) == ("throughput", "samples/s", [])
    for _, group in table.groupby("device"):
        by_name = group.set_index("compiler_label")
        assert set(by_name.index[by_name["best"] | by_name["tied"]]) == {"onnxruntime", "openvino"}
        assert by_name.loc["tvm", "loss"] == pytest.approx(0.25, abs=0.01)
        assert by_name.loc["tvm", "loss_ci_low"] < 0.25 < by_name.loc["tvm", "loss_ci_high"]
        assert by_name.loc[by_name["best"], ["loss"]].to_numpy().tolist() == [[0.0]]


def test_costs_of_what_should_be_low() -> None:
    table = recommend(drawn().draw(0), objective="latency_mean_ms", devices=["xeon"]).table
    assert table["batch"].tolist()[:2] == [1, 1]
    assert table["loss"].min() >= -0.01
    assert table.set_index(["compiler_label", "batch"]).loc[("identity", 1), "loss"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("rule", ["maximin", "geomean"])
def test_one_choice_for_a_fleet(rule: str) -> None:
    def throughput(device: str, compiler: str, batch: int) -> float:
        table = {"tensorrt": {"xeon": 10.0, "gpu": 900.0}, "openvino": {"xeon": 100.0, "gpu": 300.0},
                 "onnxruntime": {"xeon": 60.0, "gpu": 600.0}, "identity": {"xeon": 50.0, "gpu": 200.0}}  # fmt: skip
        return table[compiler][device] * batch

    names = ["identity", "onnxruntime", "openvino", "tensorrt"]
    drawn = Drawn(grid(throughput, device=["xeon", "gpu"], compiler=names, batch=[1]))
    table = recommend(drawn.draw(0), fleet=rule).table  # type: ignore[arg-type]
    best = table[table["best"]]
    assert set(best["compiler_label"]) == {"onnxruntime"}
    assert set(best["device"]) == {"xeon", "gpu"}
    expected = 0.6 if rule == "maximin" else math.sqrt(0.6 * 600 / 900)
    assert best["score"].to_numpy() == pytest.approx(expected, abs=0.01)
    second = table[table["rank"] == 2].iloc[0]
    assert second["loss_ci_low"] < second["loss"] < second["loss_ci_high"]
    assert not table["tied"].any()


def test_a_fleet_needs_a_choice_that_all_devices_can_run() -> None:
    frame = cells(device=["xeon", "orin"], compiler=["openvino", "tensorrt"], compiler_label=["openvino", "tensorrt"])
    table, about = recommend(frame, fleet="maximin")
    assert table.empty
    assert [one["refused"] for one in about["nothing"]] == [{"no choice that all devices can run": 1}] * 2


def test_the_winner_is_pulled_by_its_model() -> None:
    frame = cells(compiler_label=["a", "b", "c"], throughput=[1.0, 2.0, 3.0], model_id=["m-1", pd.NA, "m-3"])
    frame["compiler"] = ["openvino", "openvino", "torchscript"]
    table = recommend(frame).table.set_index("compiler_label")
    assert table.loc["a", "pull"] == "mlflow-ngraph engine pull models:/m-1"
    assert table.loc["b", "pull"] == ""
    assert table.loc["c", "pull"] == "mlflow-ngraph engine pull models:/m-3 --run"


def test_the_latest_study_of_a_cell_counts_also_where_it_ended_worse() -> None:
    frame = cells(study_id=["old", "new"], started_at=[1.0, 2.0], verdict=["ok", "failed"], throughput=[9.0, np.nan])
    table = recommend(pd.concat([frame, cells(compiler_label="b", throughput=5.0)])).table
    assert table["compiler_label"].tolist() == ["b"]


def test_what_a_front_is() -> None:
    values = np.array([[1.0, 5.0], [2.0, 4.0], [1.0, 4.0], [2.0, 4.0], [np.nan, 9.0]])
    assert on_front(values, [False, False]).tolist() == [True, True, False, True, False]
    assert on_front(values, [True, False]).tolist() == [True, False, False, False, False]


def test_the_latency_at_a_rate() -> None:
    frame = cells(batch=[1, 4], throughput=[100.0, 200.0])
    offered = pd.DataFrame(
        [
            {"study_id": "study", "cell": cell, "batch": batch, "rate": rate, "latency_p99_ms": p99, "overloaded": over,
             "valid": valid}
            for cell, batch, rate, p99, over, valid in [
                (frame["cell"][0], 1, 50.0, 11.0, False, True),
                (frame["cell"][0], 1, 80.0, 19.0, False, True),
                (frame["cell"][0], 1, 95.0, 99.0, True, True),
                (frame["cell"][1], 4, 20.0, 30.0, False, True),
                (frame["cell"][1], 4, 18.0, 25.0, False, False),
            ]
        ]
    )  # fmt: skip
    for rate, expected in ((50.0, [11.0, 30.0]), (60.0, [19.0, 30.0]), (90.0, [math.nan, math.nan])):
        found = serving_rates.add(frame, offered, rate)[serving_rates.AT_RATE]
        assert found.tolist() == pytest.approx(expected, nan_ok=True)
    table = recommend(serving_rates.add(frame, offered, 60.0), objective="latency-at-rate").table
    assert table["value"].tolist() == [19.0, 30.0]


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"objective": "speed"}, UnknownNameError, "did you mean 'speedup'"),
        ({"objective": "rounds"}, UsageError, "neither a high nor a low"),
        ({"objective": "energy"}, UsageError, "none of these 1 cells has energy_per_sample_j; mlflow-ngraph doctor"),
        ({"objective": "latency-at-rate"}, UsageError, "needs a rate, and studies with arrivals"),
        ({"limits": [Limit("cpu", "max", 1)]}, UnknownNameError, "unknown metric 'cpu'"),
        ({"front": ["speed"]}, UnknownNameError, "unknown metric 'speed'"),
        ({"devices": ["gpu"]}, UnknownNameError, "unknown device 'gpu'"),
    ],
)
def test_what_does_not_fit_is_said(asked: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        recommend(cells(), **asked)


@pytest.mark.parametrize(
    ("objective", "limits", "said"),
    [
        ("compile_total_s", [], "no compiler is better than eager execution by compile_total_s"),
        (
            "throughput",
            [Limit("compile_total_s", "max", 1.0)],
            "no compiler was faster than eager execution within the limits",
        ),
        (
            "engine_size_mb",
            [Limit("compile_total_s", "max", 1.0)],
            "eager execution by engine_size_mb within the limits",
        ),
    ],
)
def test_the_baseline_is_unbeaten_in_what_was_asked(objective: str, limits: list[Limit], said: str) -> None:
    table = cells(
        workload=["timm:a", "timm:a"],
        label=["a", "a"],
        device=["xeon", "xeon"],
        compiler=["identity", "ort"],
        compiler_label=["identity", "ort"],
        batch=[1, 1],
        throughput=[100.0, 256.0],
        compile_total_s=[0.1, 2.0],
        engine_size_mb=[3.0, 9.0],
    )
    (answer,) = recommend(table, objective=objective, limits=limits).about["answers"]
    assert answer["said"].endswith(said)
