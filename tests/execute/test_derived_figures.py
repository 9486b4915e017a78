"""Every figure of a journal with its interval, beside formulas that are written here once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from mlflow_ngraph.estimates import UNEVEN
from mlflow_ngraph.execute.derive import derive
from mlflow_ngraph.execute.record import CellRecord
from mlflow_ngraph.execute.replay import fold
from mlflow_ngraph.measure import open_loop_figures
from mlflow_ngraph.processes.stops import AGAIN
from mlflow_ngraph.verdicts import Verdict
from tests.measure.test_open_loop_figures import event as arrivals
from tests.support.script import Script

ROUNDS, REPETITIONS = 5, 7
MEAN_MS = {("identity", 1): 10.0, ("identity", 4): 32.0, ("fast", 1): 5.0, ("fast", 4): 9.0}
BUSY = {"identity": 0.9, "fast": 0.6}
"""Processors, of four."""

Slices = dict[tuple[str, int], NDArray[np.float64]]
"""Durations in milliseconds by compiler and batch size; shape (rounds, repetitions)."""


@pytest.fixture
def drawn() -> Slices:
    rng = np.random.default_rng(11)
    shape = ROUNDS, REPETITIONS
    # Of these a journal, which has whole nanoseconds, loses nothing.
    return {key: np.round(64 * mean * rng.lognormal(0, 0.1, shape)) / 64 for key, mean in MEAN_MS.items()}


def written(drawn: Slices, noise: dict[tuple[str, int], str] | None = None, requests: int = 1) -> Script:
    """The journal of a study with these durations; how busy the lanes were changes from round to round."""
    script = Script()
    for (compiler, batch), rounds in drawn.items():
        script.ready(compiler, batch, requests)
        for number, durations in enumerate(rounds):
            script.slice(compiler, batch, number, durations)
            seen = script.events[-1]["machine"]
            seen["cpu_s"] = busy(compiler, number) * seen["seconds"]
            seen["counted"]["machine_busy_s"] = seen["cpu_s"]
        script.finished(compiler, batch, noise=(noise or {}).get((compiler, batch), ""))
    return script


def busy(compiler: str, number: int) -> float:
    return BUSY[compiler] * (1 + 0.1 * (number % 3))


def logs(rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of the medians of slices."""
    return np.log(np.median(rounds, axis=1))


def of_mean(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean, its standard error and degrees of freedom."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)), values.size - 1.0


def of_difference(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float, float]:
    """Of two that were measured independently: Welch and Satterthwaite."""
    variance = one[1] ** 2 + other[1] ** 2
    freedom = variance**2 / (one[1] ** 4 / one[2] + other[1] ** 4 / other[2])
    return one[0] - other[0], float(np.sqrt(variance)), freedom


def check(metrics: dict[str, float], name: str, log: float, error: float, freedom: float) -> None:
    """A figure, its interval, and what that was made of."""
    reach = stats.t.ppf(0.975, freedom) * error
    expected = {
        name: np.exp(log), f"{name}_ci_low": np.exp(log - reach), f"{name}_ci_high": np.exp(log + reach),
        f"{name}_log_se": error, f"{name}_df": freedom,
    }  # fmt: skip
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-9)


def test_timings(drawn: Slices) -> None:
    metrics = written(drawn).cell("fast", 4).metrics
    rounds = drawn["fast", 4]
    flat, per_second = rounds.ravel(), 4 * 1e3
    assert metrics["repetitions"] == ROUNDS * REPETITIONS
    assert metrics["rounds"] == ROUNDS
    assert metrics["throughput_std"] == pytest.approx(np.std(per_second / flat, ddof=1))
    assert metrics["latency_mean_ms"] == pytest.approx(flat.mean(), rel=1e-9)
    assert metrics["latency_std_ms"] == pytest.approx(np.std(flat, ddof=1), rel=1e-9)
    assert metrics["latency_p90_ms"] == pytest.approx(np.percentile(flat, 90), rel=1e-9)
    assert metrics["latency_p99_ms"] == pytest.approx(np.percentile(flat, 99), rel=1e-9)
    _, error, freedom = of_mean(logs(rounds))
    check(metrics, "latency_p50_ms", np.log(np.median(flat)), error, freedom)
    # All slices have equally many repetitions: the error of the mean is that of their means.
    means = rounds.mean(axis=1)
    error = np.std(means, ddof=1) / np.sqrt(ROUNDS) / flat.mean()
    check(metrics, "throughput_mean", np.log(per_second / flat.mean()), error, ROUNDS - 1.0)
    log, error, freedom = of_mean(logs(rounds))
    check(metrics, "throughput", np.log(per_second) - log, error, freedom)


def test_what_compares_cells(drawn: Slices) -> None:
    script = written(drawn)
    metrics = script.cell("fast", 4).metrics
    pairs = {batch: of_mean(logs(drawn["identity", batch]) - logs(drawn["fast", batch])) for batch in (1, 4)}
    check(metrics, "speedup", *pairs[4])
    check(metrics, "bsr", *of_difference(pairs[4], pairs[1]))
    own = {batch: of_mean(-logs(drawn["fast", batch])) for batch in (1, 4)}
    log, error, freedom = of_difference(own[4], own[1])
    check(metrics, "rtr", log + np.log(4), error, freedom)
    check(metrics, "ase", log, error, freedom)
    for compiler in ("identity", "fast"):
        single = script.cell(compiler, 1).metrics
        assert [single[name] for name in ("rtr", "ase", "bsr")] == [1.0, 1.0, 1.0]
        for name in ("rtr", "ase", "bsr"):
            assert [single[f"{name}_ci_{end}"] for end in ("low", "high")] == [1.0, 1.0]
            assert f"{name}_df" not in single, "what is known exactly has no degrees of freedom"


def test_the_cpu_reduction_is_that_of_shared_rounds(drawn: Slices) -> None:
    drawn["fast", 1] = drawn["fast", 1][:3]
    script = written(drawn)
    metrics = script.cell("fast", 1).metrics
    assert metrics["cpu_reduction"] == pytest.approx(1 - BUSY["fast"] / BUSY["identity"])
    assert script.cell("identity", 1).metrics["cpu_reduction"] == 0.0
    assert script.cell("identity", 1).metrics["speedup"] == 1.0


def test_the_cpu_reduction_has_its_ends_turned_round(drawn: Slices) -> None:
    script = written(drawn)
    factors = np.array([1.0, 1.1, 0.9, 1.2, 0.95])
    slices = [event for event in script.events if event["event"] == "slice" and event["cell"] == "fast-b4"]
    for event, factor in zip(slices, factors, strict=True):
        event["machine"]["cpu_s"] *= factor
    log, error, freedom = of_mean(np.log(factors * BUSY["fast"] / BUSY["identity"]))
    reach = stats.t.ppf(0.975, freedom) * error
    metrics = script.cell("fast", 4).metrics
    expected = {
        "cpu_reduction": 1 - np.exp(log),
        "cpu_reduction_ci_low": 1 - np.exp(log + reach),
        "cpu_reduction_ci_high": 1 - np.exp(log - reach),
        "cpu_reduction_log_se": error,
        "cpu_reduction_df": freedom,
    }
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("silent", ["identity", "fast"])
def test_there_is_no_cpu_reduction_where_a_lane_seems_to_have_done_nothing(drawn: Slices, silent: str) -> None:
    script = written(drawn)
    slices = [event for event in script.events if event["event"] == "slice" and event["cell"] == f"{silent}-b1"]
    slices[2]["machine"]["cpu_s"] = 0.0
    assert "cpu_reduction" not in script.cell("fast", 1).metrics
    assert "cpu_reduction" in script.cell("fast", 4).metrics


def test_there_is_no_cpu_reduction_where_the_use_of_a_round_is_unknown(drawn: Slices) -> None:
    script = written(drawn)
    del next(event for event in script.events if event["event"] == "slice" and event["cell"] == "fast-b1")["machine"]
    assert "cpu_reduction" not in script.cell("fast", 1).metrics
    assert "speedup" in script.cell("fast", 1).metrics


def test_medians_of_rounds_are_those_of_a_sample_and_have_their_names(drawn: Slices) -> None:
    cell = written(drawn, requests=2).cell("fast", 4)
    expected = logs(drawn["fast", 4] * 1e6) - np.log(4 * 2)
    assert cell.log_medians == pytest.approx({f"1.{number}@4": log for number, log in enumerate(expected)})


def test_rounds_of_a_race_have_no_batch_size_in_their_names(drawn: Slices) -> None:
    script = written(drawn)
    for objective, name in (("throughput", "1.0"), ("latency", "1.0"), (None, "1.0@4")):
        script.events[0]["study"]["objective"] = objective
        assert next(iter(script.cell("fast", 4).log_medians)) == name


def test_what_the_baseline_did_beside_a_later_session_counts_as_its_round(drawn: Slices) -> None:
    script = written(drawn).session()
    script.ready("identity", 4).slice("identity", 4, 7, [16.0, 16.0], companion=True)
    assert script.cell("identity", 4).log_medians["2.7@4"] == pytest.approx(np.log(16e6 / 4))
    assert len(script.cell("fast", 4).log_medians) == ROUNDS


def test_one_repetition_does_not_scatter_and_two_do() -> None:
    script = Script([1])
    script.ready("identity", 1).slice("identity", 1, 0, [10]).finished("identity", 1)
    script.ready("fast", 1).slice("fast", 1, 0, [5]).slice("fast", 1, 1, [6]).finished("fast", 1)
    alone, both = script.cell("identity", 1).metrics, script.cell("fast", 1).metrics
    assert (alone["throughput_std"], alone["latency_std_ms"]) == (0.0, 0.0)
    assert both["latency_std_ms"] == pytest.approx(np.sqrt(0.5))
    assert both["throughput_std"] == pytest.approx((200 - 1e3 / 6) * np.sqrt(0.5))


def test_each_workload_and_precision_has_a_baseline_of_its_own() -> None:
    script = Script([1], lanes=["identity", "fast", "n:fast", "n:identity"])
    half = [script.lane(f"n:{name}", id=f"half-{name}", precision="bf16") for name in ("fast", "identity")]
    for event in script.events:
        event["lanes"] = [*event["lanes"], *half]
    lanes = {"identity": 10, "fast": 5, "n:identity": 30, "n:fast": 6, "half-identity": 20, "half-fast": 2}
    for lane, milliseconds in lanes.items():
        script.measured(lane, 1, milliseconds)
    speedups = {lane: script.cell(lane, 1).metrics["speedup"] for lane in lanes}
    assert speedups == pytest.approx({**dict.fromkeys(lanes, 1.0), "fast": 2.0, "n:fast": 5.0, "half-fast": 10.0})


def test_batch_size_2_is_compared_with_1_and_without_the_baseline_there_is_no_bsr() -> None:
    script = Script([1, 2])
    for lane, single, pair in (("identity", 10, 16), ("fast", 5, 6)):
        script.measured(lane, 1, single)
        script.ready(lane, 2)
        for number in range(3):
            script.slice(lane, 2, number, [pair] * 5)
        script.finished(lane, 2)
    metrics = script.cell("fast", 2).metrics
    expected = {"rtr": 10 / 6, "ase": 5 / 6, "bsr": (5 / 6) / (10 / 16)}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    script.events = [event for event in script.events if event.get("cell") != "identity-b2"]
    metrics = script.cell("fast", 2).metrics
    assert metrics["rtr"] == pytest.approx(10 / 6)
    assert "bsr" not in metrics
    script.events = [event for event in script.events if event.get("lane") != "identity"]
    assert not {"speedup", "bsr"} & set(script.cell("fast", 2).metrics)
    alone = Script([1, 2], lanes=["fast"]).measured("fast", 1, 5).measured("fast", 2, 6)
    assert alone.cell("fast", 2).metrics["rtr"] == pytest.approx(10 / 6)
    noisy = Script([1, 2])
    noisy.ready("fast", 1).slice("fast", 1, 0, [5]).finished("fast", 1, noise="others used 30 %").measured("fast", 2, 6)
    assert unsteady(noisy.cell("fast", 2)) == {"rtr", "ase"}


def test_journals_that_do_not_say_how_many_requests_are_in_flight_had_one(drawn: Slices) -> None:
    script = written(drawn)
    for event in script.events:
        event.pop("requests", None)
    assert script.cell("fast", 4).metrics == written(drawn).cell("fast", 4).metrics


def test_what_is_counted_is_told_for_a_sample(drawn: Slices) -> None:
    script = written(drawn, requests=2)
    slices = [event for event in script.events if event["event"] == "slice" and event["cell"] == "fast-b4"]
    for number, event in enumerate(slices):
        event["page_faults"] = 100 * number
    found = script.cell("fast", 4).metrics["page_faults_per_sample"]
    assert found == pytest.approx(1000 / (4 * 2 * ROUNDS * REPETITIONS))


def test_rates_of_arrivals_are_judged_by_the_study_and_the_machine(drawn: Slices) -> None:
    record = fold(written(drawn).events)
    study = {"stability": {"max_foreign_cpu_percent": 10, "max_spread": 0.1}, "arrivals": {"max_p99_ms": 5.0}}
    cell, event = record.lanes["fast"].cells[4], arrivals(300, 4)
    record.study, cell.arrivals = study, [event]
    derive(record)
    row = open_loop_figures.row(event, 4, study["stability"])
    assert cell.serving == [row]
    headlines = open_loop_figures.headlines([row], 5.0)
    assert {"serve_peak_rate", "serve_max_rate"} <= set(headlines)
    assert {name: cell.metrics[name] for name in headlines} == headlines
    assert record.lanes["fast"].cells[1].serving == []


def test_requests_in_flight_are_in_what_is_done_and_not_in_what_one_waits(drawn: Slices) -> None:
    metrics = written(drawn, requests=2).cell("fast", 4).metrics
    assert metrics["throughput"] == pytest.approx(4 * 2 * 1e3 / np.exp(np.mean(logs(drawn["fast", 4]))))
    assert metrics["speedup"] == pytest.approx(np.exp(np.mean(logs(drawn["identity", 4]) - logs(drawn["fast", 4]))))
    assert not [name for name in metrics if name.startswith("latency_")]


def test_what_verification_said_is_in_the_metrics(drawn: Slices) -> None:
    script = written(drawn)
    ready = next(event for event in script.events if event["event"] == "cell_ready" and event["cell"] == "fast-b4")
    ready["parity"] = {"max_abs": 1e-3, "max_rel": 2e-3, "cosine": 0.999, "top1": 0.75}
    ready["load_s"], ready["first_inference_s"] = 0.125, 0.5
    verified = {"event": "cell_verified", "at": 1.0, "cell": "fast-b4", "lane": "fast", "batch": 4, "parity": None}
    script.events.insert(script.events.index(ready), {**verified, "inputs": 24, "seconds": 3.5, "load_s": 0.5})
    metrics = script.built("fast", [4]).cell("fast", 4).metrics
    expected = {
        "parity_max_abs": 1e-3, "parity_max_rel": 2e-3, "parity_cosine": 0.999, "parity_top1": 0.75,
        "load_s": 0.125, "first_inference_s": 0.5, "warmup_repetitions": 10.0,
        "parity_inputs": 24.0, "verify_s": 3.5,
    }  # fmt: skip
    assert {key: metrics[key] for key in expected} == expected


def unsteady(cell: CellRecord) -> set[str]:
    return set(cell.unsteady)


def test_noise_touches_what_is_absolute_and_what_stands_on_it(drawn: Slices) -> None:
    quiet = {key: written(drawn).cell(*key) for key in drawn}
    assert not any(unsteady(cell) for cell in quiet.values())
    script = written(drawn, noise={("fast", 1): "others used 30 % of the machine"})
    single, larger = script.cell("fast", 1), script.cell("fast", 4)
    assert {"throughput", "throughput_mean", "latency_p50_ms", "cpu_percent"} <= unsteady(single)
    assert not {"rtr", "ase", "bsr", "speedup", "cpu_reduction"} & unsteady(single)
    assert unsteady(larger) == {"rtr", "ase"}
    assert not unsteady(script.cell("identity", 4))
    assert not unsteady(script.cell("identity", 1))
    both = written(drawn, noise={("fast", 4): "others used 30 % of the machine"}).cell("fast", 4)
    assert {"throughput", "rtr", "ase"} <= unsteady(both)
    assert not {"bsr", "speedup"} & unsteady(both)


def loaded(script: Script, id_: str) -> Script:
    """While this cell was measured, others took 30 % of four processors."""
    for event in script.events:
        if event["event"] == "slice" and event["cell"] == id_:
            seen = event["machine"]
            seen["counted"]["machine_busy_s"] = seen["cpu_s"] + 4 * 0.3 * seen["seconds"]
    return script


@pytest.mark.parametrize("lane", ["identity", "fast"])
@pytest.mark.parametrize("batch", [2, 4])
def test_load_at_batch_size_1_is_in_the_speed_up_there_and_in_every_bsr(drawn: Slices, lane: str, batch: int) -> None:
    durations = {(name, 1 if size == 1 else batch): rounds for (name, size), rounds in drawn.items()}
    script = loaded(written(durations), f"{lane}-b1")
    assert unsteady(script.cell("fast", 1)) == {"speedup", "cpu_reduction"}, "its BSR is 1 by definition"
    assert unsteady(script.cell("fast", batch)) == {"bsr"}


def test_load_and_noise_both_touch_their_figures(drawn: Slices) -> None:
    script = loaded(written(drawn, noise={("fast", 4): "others used 30 % of the machine"}), "fast-b4")
    assert {"throughput", "rtr", "ase", "speedup", "cpu_reduction", "bsr"} <= unsteady(script.cell("fast", 4))


def test_load_needs_no_batch_size_1_and_no_known_use(drawn: Slices) -> None:
    script = written({key: rounds for key, rounds in drawn.items() if key[1] == 4})
    assert not unsteady(script.cell("fast", 4))
    for event in script.events:
        if event["event"] == "slice":
            del event["machine"]
    assert not unsteady(script.cell("fast", 4))
    assert "speedup" in script.cell("fast", 4).metrics


def test_speed_ups_beside_much_foreign_load_are_unsteady(drawn: Slices) -> None:
    script = loaded(written(drawn), "identity-b4")
    assert script.cell("identity", 4).metrics["foreign_cpu_percent"] == pytest.approx(30)
    assert unsteady(script.cell("fast", 4)) == {"speedup", "bsr", "cpu_reduction"}
    assert not unsteady(script.cell("fast", 1))
    assert not unsteady(script.cell("identity", 4)), "over itself it is 1"
    beside, quiet = (script.cell("fast", batch).metrics["speedup_log_se"] for batch in (4, 1))
    assert beside >= 0.3 * UNEVEN > quiet


@pytest.mark.parametrize("name", ["throughput", "latency_p50_ms"])
def test_noise_widens_the_intervals_of_absolute_figures_alone(drawn: Slices, name: str) -> None:
    # Rounds drift: neighbours are alike.
    drift = np.exp(np.linspace(-0.2, 0.2, ROUNDS))[:, None]
    drawn = {key: np.round(64 * rounds * drift) / 64 for key, rounds in drawn.items()}
    quiet = written(drawn).cell("fast", 4).metrics
    noisy = written(drawn, noise={("fast", 4): "others used 30 % of the machine"}).cell("fast", 4).metrics
    assert noisy[name] == quiet[name]
    assert noisy[f"{name}_log_se"] > 1.2 * quiet[f"{name}_log_se"]
    assert noisy[f"{name}_df"] <= quiet[f"{name}_df"]
    for key in ("speedup_log_se", "speedup_df"):
        assert noisy[key] == quiet[key]


def test_rounds_that_differ_too_much_give_figures_and_errors_without_ends(drawn: Slices) -> None:
    apart = np.exp([0.0, 2.0, -2.0, 3.0, 1.0])[:, None]
    metrics = written({**drawn, ("fast", 4): np.round(64 * drawn["fast", 4] * apart) / 64}).cell("fast", 4).metrics
    for name in ("throughput", "throughput_mean", "latency_p50_ms", "speedup", "rtr", "ase", "bsr"):
        assert metrics[name] > 0
        assert metrics[f"{name}_log_se"] > 0.3
        assert not {f"{name}_ci_low", f"{name}_ci_high"} & set(metrics)
    beside = written(drawn).cell("fast", 4).metrics
    assert beside["throughput_ci_high"] < 10 * beside["throughput_ci_low"]


def test_throughputs_have_the_order_of_speed_ups(drawn: Slices) -> None:
    """One repetition of a hundred times its length moves a mean, and nothing that lanes are ordered by."""
    held_up = drawn["fast", 1].copy()
    held_up[2, 3] *= 100
    script = written({**drawn, ("fast", 1): held_up})
    fast, eager = (script.cell(name, 1).metrics for name in ("fast", "identity"))
    assert fast["throughput_mean"] < eager["throughput_mean"]
    assert fast["throughput"] / eager["throughput"] == pytest.approx(fast["speedup"])


def test_an_engine_says_what_it_cost(drawn: Slices) -> None:
    script = written(drawn).built("fast", [1, 4])
    script.events[-1].update(built_beside=3, size_bytes=1_500_000, stages={"export": 1.0, "compile": 2.5})
    metrics: dict[str, Any] = script.cell("fast", 4).metrics
    expected = {"export_s": 1.0, "compile_s": 2.5, "compile_total_s": 3.5, "built_beside": 3.0, "engine_size_mb": 1.5}
    assert {key: metrics[key] for key in expected} == expected


def test_compile_and_load_times_with_a_stop_in_them_are_no_figures(drawn: Slices) -> None:
    script = written(drawn).built("fast", [1, 4])
    script.events[-1].update(stages={}, stopped_s=[5.0])
    ready = next(event for event in script.events if event["event"] == "cell_ready" and event["cell"] == "fast-b4")
    ready["stopped_s"] = [5.0]
    found = script.cell("fast", 4).metrics
    assert "compile_total_s" not in found
    assert "load_s" in found, "it was loaded again"
    ready["stopped_s"] = [5.0] * AGAIN
    assert set(found) - set(script.cell("fast", 4).metrics) == {"load_s", "first_inference_s"}


def test_no_figure_depends_on_the_time_of_day(drawn: Slices) -> None:
    script, stepped = written(drawn).built("fast", [1, 4]), written(drawn).built("fast", [1, 4])
    for number, event in enumerate(stepped.events):
        event["at"] = 1e9 - 3600.0 * number
        event.update({"started_ns": 1 + number} if "started_ns" in event else {})
    assert stepped.cell("fast", 4).metrics == script.cell("fast", 4).metrics


def test_a_cell_without_samples_has_no_timings() -> None:
    script = Script([1])
    script.measured("identity", 1, 10).ready("fast", 1).finished("fast", 1, "crashed", "killed by SIGSEGV")
    cell = script.cell("fast", 1)
    assert cell.verdict is Verdict.CRASHED
    assert not {"throughput", "repetitions", "speedup", "peak_memory_mb"} & set(cell.metrics)
    assert cell.log_medians == {}
