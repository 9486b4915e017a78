"""What slices say about processors, memory, clocks and energy."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_ngraph.execute.resources import resources
from mlflow_ngraph.metrics import CELL_METRICS


def part(repetitions: int = 10, **more: Any) -> dict[str, Any]:
    """A slice of one second."""
    return {"durations_ns": [10**8] * repetitions, "wall_s": 1.0, "peak_bytes": 80_000_000, **more}


def machine(
    counted: dict[str, float] | None = None,
    busy_s: dict[str, float] | None = None,
    seconds: float = 1.0,
    cpu_s: float = 1.5,
    **values: float,
) -> dict[str, Any]:
    """What was seen of a machine of which the lane kept one and a half processors busy."""
    said = {name.replace("__", "."): value for name, value in values.items()}
    seen = {"seconds": seconds, "cpu_s": cpu_s, "counted": counted or {}, "busy_s": busy_s or {}, "values": said}
    return {"machine": seen}


def derived(*slices: dict[str, Any], samples_per_call: float = 4.0) -> dict[str, float]:
    found = resources(slices, 4, 2, samples_per_call)
    assert set(found) <= set(CELL_METRICS)
    return found


def test_a_slice_that_nobody_watched_says_what_it_can() -> None:
    assert derived(part(), part()) == {"peak_memory_mb": 80.0}


def test_processors_of_the_lane_and_of_others() -> None:
    watched = machine({"machine_busy_s": 1.7})
    assert derived(part(**watched), part(**watched)) == pytest.approx(
        {
            "cpu_percent": 37.5,
            "cpu_percent_std": 0.0,
            "cpu_percent_of_threads": 75.0,
            "cpu_cores": 1.5,
            "foreign_cpu_percent": 5.0,
            "peak_memory_mb": 80.0,
        }
    )


def test_the_scatter_of_the_cpu_use_is_that_between_slices() -> None:
    # 25 % and 50 % of four processors
    one, two = part(**machine(cpu_s=1.0)), part(**machine(cpu_s=2.0))
    assert derived(one, two)["cpu_percent_std"] == pytest.approx(12.5 * 2**0.5)
    assert "cpu_percent_std" not in derived(one)


def test_memory_between_the_peaks() -> None:
    found = derived(*(part(resident_bytes=size) for size in (50_000_000, 60_000_000, 75_000_000)))
    assert found["steady_memory_mb"] == pytest.approx(60)
    assert "steady_memory_mb" not in derived(part(resident_bytes=None))


def test_the_share_of_the_harness_is_one_of_its_own_waiting() -> None:
    found = derived(part(harness_cpu_s=0.001, harness_wall_s=1.2), part(harness_cpu_s=0.002, harness_wall_s=1.8))
    assert found["harness_cpu_percent"] == pytest.approx(0.1)


def test_the_busiest_processor_is_the_same_one_over_all_slices() -> None:
    one, two = machine(busy_s={"0": 0.9, "1": 0.2}), machine(busy_s={"0": 0.1, "1": 0.9})
    assert derived(part(**one), part(**two))["cpu_percent_busiest_core"] == pytest.approx(55)
    tick_more = machine(busy_s={"0": 1.01})
    assert derived(part(**tick_more))["cpu_percent_busiest_core"] == 100


def test_clock_and_temperature_are_those_of_what_computes() -> None:
    cpu = [part(**machine(clock_mhz=clock, temperature_c=clock / 50)) for clock in (3000.0, 3200.0)]
    assert derived(*cpu)["clock_mhz"] == pytest.approx(3100)
    assert derived(*cpu)["temperature_c"] == pytest.approx(64)
    gpu = part(**machine(clock_mhz=800, temperature_c=40, gpu_clock_mhz=1755, gpu_temperature_c=71))
    assert derived(gpu)["clock_mhz"] == 1755
    assert derived(gpu)["temperature_c"] == 71


def test_energy_is_that_of_all_meters() -> None:
    meters = {"energy_j.package-0": 90.0, "energy_j.dram-0": 10.0, "energy_j.gpu": 200.0}
    found = derived(*(part(**machine(meters, seconds=1.5, power_w__gpu=250.0)) for _ in range(2)))
    assert found["power_w"] == pytest.approx(200), "the meter of the GPU is better than its power of a moment"
    assert found["energy_per_sample_j"] == pytest.approx(200 * 1.0 / (4 * 10)), "in a second, 4 samples 10 times"


def test_power_stands_in_where_there_is_no_meter() -> None:
    found = derived(part(**machine(seconds=1.5, power_w__board=12.0)), samples_per_call=1)
    assert found["power_w"] == pytest.approx(12)
    assert found["energy_per_sample_j"] == pytest.approx(12 * 1.0 / 10)


def test_energy_of_slices_that_lack_a_meter_is_not_mixed_with_that_of_others() -> None:
    whole = machine({"energy_j.package-0": 90.0, "energy_j.gpu": 10.0})
    torn = machine({"energy_j.package-0": 90.0})
    assert derived(part(**whole), part(**torn))["energy_per_sample_j"] == pytest.approx(100 / 40)


@pytest.mark.parametrize("counted", [{}, {"energy_j.gpu": 0.0}])
def test_without_a_meter_that_moves_there_is_no_energy(counted: dict[str, float]) -> None:
    found = derived(part(**machine(counted)))
    assert not {"energy_per_sample_j", "power_w", "clock_mhz", "temperature_c"} & set(found)
