"""Metrics of processors, memory, clocks and energy from a cell's slices. Pure, as `mlflow_ngraph.execute.derive`.

Fields that older journals lack give no metric.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_ngraph.measure import cpu_shares
from mlflow_ngraph.measure.stability import of_engine
from mlflow_ngraph.metrics import FOREIGN

SliceRecord = Mapping[str, Any]
MB = 1e6

_ENERGY, _POWER = "energy_j.", "power_w."


def resources(
    slices: Sequence[SliceRecord], processors: int, threads: int, samples_per_call: float
) -> dict[str, float]:
    """Metrics of a cell that has slices.

    ``processors`` are those of the whole machine, ``threads`` those assigned to the lane, and ``samples_per_call`` the
    inferences within a repetition.
    """
    metrics: dict[str, float] = {
        **_processors(slices, processors, threads),
        "peak_memory_mb": max(part["peak_bytes"] for part in slices) / MB,
    }
    resident = [size for part in slices if (size := part.get("resident_bytes")) is not None]
    if resident:
        metrics["steady_memory_mb"] = statistics.median(resident) / MB
    watched = [part for part in slices if "page_faults" in part]
    if watched:
        samples = samples_per_call * sum(len(part["durations_ns"]) for part in watched)
        metrics["page_faults_per_sample"] = sum(part["page_faults"] for part in watched) / samples
    waited = sum(part.get("harness_wall_s", 0.0) for part in slices)
    if waited > 0:
        metrics["harness_cpu_percent"] = 100 * sum(part.get("harness_cpu_s", 0.0) for part in slices) / waited
    return {**metrics, **_machine([part for part in slices if "machine" in part], samples_per_call)}


def own_processors(part: SliceRecord, processors: int) -> float | None:
    """Processors that the lane kept busy around a slice; None when unknown."""
    return cpu_shares.own_processors(_windows([part]), processors)


def _processors(slices: Sequence[SliceRecord], processors: int, threads: int) -> dict[str, float]:
    """CPU use of the lane and of others."""
    windows, metrics = _windows(slices), {}
    own, others = cpu_shares.own_processors(windows, processors), cpu_shares.foreign(windows, processors)
    if own is not None:
        metrics["cpu_percent"] = 100 * own / processors
        metrics["cpu_percent_of_threads"] = 100 * own / threads
        metrics["cpu_cores"] = own
    each = [use for part in slices if (use := own_processors(part, processors)) is not None]
    if len(each) > 1:
        metrics["cpu_percent_std"] = 100 * statistics.stdev(each) / processors
    if others is not None:
        metrics[FOREIGN] = 100 * others.share
    return metrics


def _windows(slices: Sequence[SliceRecord]) -> list[cpu_shares.Window]:
    windows = [cpu_shares.Window.of(part.get("machine")) for part in slices]
    return [window for window in windows if window is not None]


def _machine(slices: Sequence[SliceRecord], samples_per_call: float) -> dict[str, float]:
    """Metrics of the sensors around each slice."""
    metrics: dict[str, float] = {}
    said = [part["machine"]["values"] for part in slices]
    clocks, temperatures = list(of_engine(said, "clock_mhz")), list(of_engine(said, "temperature_c"))
    if clocks:
        metrics["clock_mhz"] = statistics.fmean(clocks)
    if temperatures:
        metrics["temperature_c"] = max(temperatures)
    busiest = _busiest_percent([part["machine"] for part in slices])
    if busiest is not None:
        metrics["cpu_percent_busiest_core"] = busiest
    return {**metrics, **_energy(slices, samples_per_call)}


def _busiest_percent(machines: Sequence[Mapping[str, Any]]) -> float | None:
    """Utilisation of the busiest processor by any process."""
    looks = [machine for machine in machines if machine["busy_s"]]
    windows = [machine["seconds"] for machine in looks]
    if cpu_shares.sampling_error(windows) > cpu_shares.COARSEST:
        return None
    spent: dict[str, float] = {}
    for machine in looks:
        for processor, seconds in machine["busy_s"].items():
            spent[processor] = spent.get(processor, 0.0) + seconds
    # A tick too many is the kernel's rounding.
    return min(100.0, 100 * max(spent.values()) / float(sum(windows)))


def _energy(slices: Sequence[SliceRecord], samples_per_call: float) -> dict[str, float]:
    """Joules and watts, over the slices in which every meter was read."""
    domains = {domain for part in slices for domain in _domains(part["machine"])}
    metered = [part for part in slices if domains <= _domains(part["machine"])]
    joules = sum(_joules(part["machine"], domain) for part in metered for domain in domains)
    if joules <= 0:
        # There is no meter, or it did not move in so short a time: no computation is free.
        return {}
    samples = samples_per_call * sum(len(part["durations_ns"]) for part in metered)
    power_w = joules / sum(part["machine"]["seconds"] for part in metered)
    # The meters cover the same work before the slice, whose repetitions are not counted.
    return {"energy_per_sample_j": power_w * sum(part["wall_s"] for part in metered) / samples, "power_w": power_w}


def _domains(machine: Mapping[str, Any]) -> set[str]:
    """Domains with an energy meter or a power sensor."""
    return {
        name.removeprefix(prefix)
        for names, prefix in ((machine["counted"], _ENERGY), (machine["values"], _POWER))
        for name in names
        if name.startswith(prefix)
    }


def _joules(machine: Mapping[str, Any], domain: str) -> float:
    """Energy by the meter; else the power after the slice times its length."""
    metered = machine["counted"].get(_ENERGY + domain)
    if metered is not None:
        return float(metered)
    return float(machine["values"][_POWER + domain] * machine["seconds"])
