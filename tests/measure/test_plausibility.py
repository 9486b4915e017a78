"""Readings that cannot be, and those that are only odd."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_ngraph.errors import CellError, ImpossibleReadingError
from mlflow_ngraph.execute.resources import resources
from mlflow_ngraph.measure.plausibility import checked_arrivals, checked_slice
from mlflow_ngraph.measure.stability import SliceFacts, problem
from mlflow_ngraph.study_settings import Stability
from mlflow_ngraph.verdicts import Verdict

PROCESSORS = 2
NONSENSE = [math.nan, math.inf, -math.inf, -1.0]
Report = dict[str, Any]


def a_slice(**changes: Any) -> Report:
    return {
        "durations_ns": [20_000] * 10,
        "started_ns": 1_760_000_000_000_000_000,
        "wall_s": 0.000_203,
        "page_faults": 0,
        "settle_s": 0.12,
        "peak_bytes": 300_000_000,
        "resident_bytes": 200_000_000,
        "machine": machine(),
        **changes,
    }


def machine(seconds: float = 0.1, cpu_s: float = 0.1, **counted: float) -> Report:
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "counted": {"machine_busy_s": 0.15, "stolen_s": 0.0, "energy_j.package-0": 6.0, "throttled": 0, **counted},
        "busy_s": {0: 0.1, 1: 0.05},
        "values": {"clock_mhz": 3100.0, "temperature_c": 64.0, "power_w.gpu": 250.0, "available_memory_mb": 9000.0},
    }


def arrivals(**changes: Any) -> Report:
    return {
        "due_ns": [0, 1_000_000, 2_000_000],
        "waited_ns": [1_000, 2_000, -1],
        "served_ns": [500_000, 600_000, -1],
        "started_ns": 1_760_000_000_000_000_000,
        "wall_s": 0.1,
        "servers": 1,
        "machine": machine(),
        **changes,
    }


def test_what_can_be_passes_as_it_is() -> None:
    assert checked_slice(a_slice(), PROCESSORS) == a_slice()
    assert checked_arrivals(arrivals(), PROCESSORS) == arrivals()
    unserved = arrivals(waited_ns=[-1] * 3, served_ns=[-1] * 3)
    assert checked_arrivals(unserved, PROCESSORS) == unserved


def test_coarse_is_not_impossible() -> None:
    """Threads on other processors are charged at the next tick; the kernel rounds, and clocks run apart."""
    coarse = machine(seconds=0.000_3, cpu_s=0.01, machine_busy_s=0.03)
    coarse["busy_s"] = {0: 0.02, 1: 0.01}
    del coarse["counted"]["energy_j.package-0"]
    assert checked_slice(a_slice(machine=coarse), PROCESSORS)["machine"] == coarse


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"durations_ns": []}, "repetitions is 0"),
        ({"durations_ns": [20_000, -5]}, "the shortest repetition [ns] is -5"),
        ({"durations_ns": [20_000, 0]}, "the shortest repetition [ns] is 0"),
        ({"durations_ns": [20_000] * 11}, "the sum of its inferences [ns] is 220000, but it is at most 204000"),
        ({"wall_s": 0.0}, "its length [s] is 0"),
        ({"wall_s": math.nan}, "its length [s] is nan"),
        ({"wall_s": 0.2}, "its length [s] is 0.2, but it is at most 0.1"),
        ({"started_ns": 0}, "the time of day [ns since 1970] is 0"),
        ({"settle_s": -0.1}, "the time before it [s] is -0.1"),
        ({"peak_bytes": 0}, "the memory of its process [bytes] is 0"),
        ({"machine": machine(seconds=0.0)}, "its length [s] is 0.000203"),
        ({"machine": machine(seconds=math.inf)}, "the time in which it was watched [s] is inf"),
        ({"machine": machine(seconds=math.nan)}, "the time in which it was watched [s] is nan"),
        (
            {"machine": machine(seconds=7e305)},
            "the time in which it was watched [s] is 7e+305, but it is at most 1e+09",
        ),
        ({"machine": machine(cpu_s=-0.001)}, "the CPU time of its process [s] is -0.001"),
        ({"machine": machine(cpu_s=0.23)}, "the CPU time of its process [s] is 0.23, but it is at most 0.2202"),
        ({"machine": machine(cpu_s=math.nan)}, "the CPU time of its process [s] is nan"),
    ],
)
def test_clocks_of_the_measurement_that_say_what_cannot_be_fail_the_cell(changes: Report, named: str) -> None:
    with pytest.raises(ImpossibleReadingError) as raised:
        checked_slice(a_slice(**changes), PROCESSORS)
    assert named in str(raised.value)
    assert str(raised.value).startswith("impossible reading of a slice: ")
    assert "measure again with --fresh" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, CellError)
    assert raised.value.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"waited_ns": [-7, 0, -1]}, "the shortest waiting of a request [ns] is -7"),
        ({"due_ns": [-3, 0, 5]}, "the shortest waiting of a request [ns] is -3"),
        ({"served_ns": [0, 600_000, -1]}, "the shortest inference [ns] is 0"),
        ({"served_ns": [500_000, 200_000_000, -1]}, "the sum of its inferences [ns] is 200500000"),
        ({"due_ns": [0, 99_900_000, 99_950_000]}, "the end of the last request [ns] is 100502000"),
        ({"machine": machine(cpu_s=9.0)}, "the CPU time of its process [s] is 9"),
    ],
)
def test_the_same_holds_for_a_rate(changes: Report, named: str) -> None:
    with pytest.raises(ImpossibleReadingError, match="impossible reading of a rate: ") as raised:
        checked_arrivals(arrivals(**changes), PROCESSORS)
    assert named in str(raised.value)


@pytest.mark.parametrize("value", [*NONSENSE, 1e9])
@pytest.mark.parametrize("name", ["machine_busy_s", "stolen_s", "energy_j.package-0"])
def test_a_counter_that_went_backwards_or_too_far_is_left_out(name: str, value: float) -> None:
    kept = checked_slice(a_slice(machine=machine(**{name: value})), PROCESSORS)["machine"]
    assert kept["counted"] == {key: said for key, said in machine()["counted"].items() if key != name}
    assert kept["values"] == machine()["values"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature_c", [*NONSENSE[:3], -273.15, 255.0, 65_261.0]),
        ("gpu_temperature_c", [-256.0]),
        ("clock_mhz", [*NONSENSE, 0.0, 3_100_000.0]),
        ("gpu_clock_mhz", [0.0]),
        ("power_w.gpu", [*NONSENSE, 4_294_967.295]),
        ("available_memory_mb", NONSENSE),
    ],
)
def test_a_sensor_that_says_nonsense_is_absent(name: str, values: list[float]) -> None:
    for value in values:
        seen = machine()
        seen["values"][name] = value
        assert name not in checked_slice(a_slice(machine=seen), PROCESSORS)["machine"]["values"], value


@pytest.mark.parametrize("value", [*NONSENSE, 0.5])
def test_processors_that_worked_longer_than_they_could_say_nothing(value: float) -> None:
    seen = machine()
    seen["busy_s"][1] = value
    assert checked_slice(a_slice(machine=seen), PROCESSORS)["machine"]["busy_s"] == {}


def test_nothing_is_held_back_for_longer_than_it_was_watched() -> None:
    """The driver of a GPU moves its clock for this in steps."""
    kept = checked_slice(a_slice(machine=machine(gpu_throttled_s=0.25)), PROCESSORS)
    assert kept["machine"]["counted"]["gpu_throttled_s"] == 0.1


def test_page_faults_cannot_be_taken_back() -> None:
    assert "page_faults" not in checked_slice(a_slice(page_faults=-4), PROCESSORS)


NUMBERS = st.one_of(st.sampled_from([*NONSENSE, 0.0, 1e-9, 1e12]), st.floats(0, 1.0), st.floats(allow_nan=True))
PLACES: list[Callable[[Report, float], Any]] = [
    lambda report, value: report.update(wall_s=value),
    lambda report, value: report.update(settle_s=value),
    lambda report, value: report.update(durations_ns=[value, *report["durations_ns"]]),
    lambda report, value: report["machine"].update(seconds=value),
    lambda report, value: report["machine"].update(cpu_s=value),
    lambda report, value: report["machine"]["busy_s"].update({0: value}),
    *(
        lambda report, value, name=name: report["machine"]["counted"].update({name: value})
        for name in ("machine_busy_s", "stolen_s", "energy_j.package-0", "gpu_throttled_s", "swapped_mb", "throttled")
    ),
    *(
        lambda report, value, name=name: report["machine"]["values"].update({name: value})
        for name in ("clock_mhz", "temperature_c", "power_w.gpu", "available_memory_mb")
    ),
]


@given(st.lists(st.lists(st.tuples(st.sampled_from(PLACES), NUMBERS), max_size=3), min_size=1, max_size=6))
def test_whatever_passes_makes_no_figure_that_cannot_be(made: list[list[tuple[Any, float]]]) -> None:
    passed = []
    for changes in made:
        report = copy.deepcopy(a_slice())
        for change, value in changes:
            change(report, value)
        try:
            passed.append(checked_slice(report, PROCESSORS))
        except ImpossibleReadingError:
            continue
    if not passed:
        return
    found = resources(passed, PROCESSORS, PROCESSORS, 1)
    assert all(math.isfinite(value) and value >= 0 for name, value in found.items() if name != "temperature_c"), found
    assert all(value <= 100 for name, value in found.items() if name.startswith(("cpu_percent", "foreign_cpu")))
    assert found.get("power_w", 0.0) <= 3 * 20_000
    reason = problem([SliceFacts.of(part) for part in passed], PROCESSORS, **Stability().model_dump()) or ""
    assert "nan" not in reason
    assert "inf" not in reason
