"""Read the sensors of the machine: clocks, temperature, throttling, swapping, energy.

Finding the sensors takes milliseconds, reading them far less than one. A missing sensor is absent from a reading, never
zero.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow_ngraph.devices import processors, sensor_files
from mlflow_ngraph.devices.nvml import Nvml
from mlflow_ngraph.devices.sysfs import fields, number

ENERGY = "energy_j."
"""Before the name of what an energy meter counts."""
POWER = "power_w."
"""Before the name of what a power sensor looks at."""

_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_CLOCKS = 16
"""Clocks that are read at a time: those of a large machine would take longer than the call that is measured."""
_BUSY = 0.5
"""A processor that worked for this share of the time has the clock that counts; those that sleep say nothing."""

_Stat = dict[str, list[int]]
"""The kernel's account of every processor, and of all together: ticks by what they were spent on."""
_ALL, _STOLEN = "cpu", 7
_WORKING = (0, 1, 2, 5, 6)
"""Programs, programs that yield to others, the kernel, interrupts, soft interrupts. Time of guests is within the first."""
_TAKEN = (*_WORKING, _STOLEN)
"""Time in neither idle nor disk wait."""


@dataclass(frozen=True)
class Reading:
    """Counters of the machine at one moment."""

    at_ns: int
    """Time of the monotonic clock."""
    cpu_s: float
    """CPU time of this process, all threads."""
    counters: Mapping[str, float]
    """``energy_j.<domain>``, ``throttled`` (events, for heat), ``over_current`` (events), ``quota_periods`` of the CPU quota of
    the control group and ``quota_throttled`` (those in which it was used up), ``swapped_mb``, ``gpu_throttled_s``
    (for heat), ``gpu_power_capped_s``, and in ticks of the kernel's clock ``machine_busy_s`` (CPU seconds of all processors,
    whatever kept them) and ``stolen_s`` (those that the hypervisor gave to others)."""
    busy_s: Mapping[int, float]
    """CPU seconds of each processor, in ticks of the kernel's clock; not those that the hypervisor gave to others."""


@dataclass(frozen=True)
class Change:
    """Changes of the machine's counters since a reading, and its current values."""

    seconds: float
    cpu_s: float
    """CPU time of this process, all threads."""
    counted: Mapping[str, float]
    """By how much each counter grew."""
    busy_s: Mapping[int, float]
    values: Mapping[str, float]
    """Current values: ``clock_mhz`` (mean of the processors that were busy), ``temperature_c`` (hottest sensor of the
    processors), ``gpu_clock_mhz``, ``gpu_temperature_c``, ``power_w.<domain>``, ``available_memory_mb``, and
    ``quota_processors`` where there is a CPU quota."""


class Sensors:
    """Sensors of this machine.

    With the accelerator ``cuda`` also those of the GPU: an NVIDIA card's with the package nvidia-ml-py, a Jetson's from
    the kernel.
    """

    def __init__(self, root: Path = Path("/"), accelerator: str = "cpu") -> None:
        self._root = root
        self._clocks = sensor_files.clocks(root)
        self._temperatures = sensor_files.temperatures(root)
        self._throttles = sensor_files.throttle_counters(root)
        self._over_current = sensor_files.over_current_counters(root)
        self._quota = processors.cpu_quota(root / "sys/fs/cgroup", root / "proc/self/cgroup")
        self._meters = sensor_files.meters(root)
        self._wraps = {name: number(path.with_name("max_energy_range_uj")) for name, path in self._meters.items()}
        self._rails = sensor_files.rails(root)
        wanted = accelerator == "cuda"
        self._gpu = Nvml.find() if wanted else None
        self._gpu_clocks = sensor_files.gpu_clocks(root) if wanted else []
        self._gpu_temperatures = sensor_files.gpu_temperatures(root) if wanted else []

    def begin(self) -> Reading:
        """Read every counter, the clock first and the CPU time of this process last."""
        events = self._events()
        # Whoever is interrupted between two readings has nothing counted that lies outside of the time between the clocks.
        at_ns = time.monotonic_ns()
        energy, stat, cpu_s = self._energy(), self._stat(), time.process_time()
        return Reading(at_ns, cpu_s, {**events, **energy, **_spent(stat)}, _busy(stat))

    def since(self, start: Reading) -> Change:
        """Changes since a reading of these sensors, read in reverse order."""
        cpu_s, stat, energy = time.process_time(), self._stat(), self._energy()
        seconds = (time.monotonic_ns() - start.at_ns) / 1e9
        power, busy = self._power(), _busy(stat)
        worked = {cpu: busy[cpu] - spent for cpu, spent in start.busy_s.items() if cpu in busy}
        values = {**self._values(_at_work(worked, seconds)), **power}
        counters = {**self._events(), **energy, **_spent(stat)}
        counted = {
            name: self._grown(name, start.counters[name], now)
            for name, now in counters.items()
            if name in start.counters
        }
        return Change(seconds, cpu_s - start.cpu_s, counted, worked, values)

    def names(self) -> list[str]:
        change = self.since(self.begin())
        return sorted([*change.counted, *change.values])

    def _grown(self, name: str, before: float, now: float) -> float:
        """Difference of two readings of a meter, corrected for one overflow."""
        wrap = self._wraps.get(name.removeprefix(ENERGY))
        return now - before + wrap * 1e-6 if now < before and wrap else now - before

    def _energy(self) -> dict[str, float]:
        energies = {ENERGY + name: _times(number(path), 1e-6) for name, path in self._meters.items()}
        if self._gpu is not None:
            energies[f"{ENERGY}gpu"] = self._gpu.energy_j()
        return _known(energies)

    def _power(self) -> dict[str, float]:
        read = [(number(volts), number(amperes)) for volts, amperes in self._rails]
        watts = [volts * amperes * 1e-6 for volts, amperes in read if volts is not None and amperes is not None]
        # A sum without one of the rails would be another figure under the same name.
        powers = {f"{POWER}board": _sum(watts) if len(watts) == len(self._rails) else None}
        if self._gpu is not None:
            powers[f"{POWER}gpu"] = self._gpu.power_w()
        return _known(powers)

    def _events(self) -> dict[str, float]:
        swapped = fields(self._root / "proc/vmstat", "pswpin", "pswpout")
        events: dict[str, float | None] = {
            "throttled": _sum(_numbers(self._throttles)),
            "over_current": _sum(_numbers(self._over_current)),
            "swapped_mb": _times(_sum(list(swapped.values())), resource.getpagesize() / 1e6),
        }
        if self._quota is not None:
            events.update(self._quota.counts())
        if self._gpu is not None:
            events.update(self._gpu.held_back_s())
        return _known(events)

    def _values(self, at_work: Iterable[int]) -> dict[str, float]:
        clocks = _numbers(self._clocks[cpu] for cpu in at_work if cpu in self._clocks)
        memory = fields(self._root / "proc/meminfo", "MemAvailable")
        values: dict[str, float | None] = {
            "clock_mhz": sum(clocks) / len(clocks) * 1e-3 if clocks else None,
            "temperature_c": _times(max(_numbers(self._temperatures), default=None), 1e-3),
            "gpu_clock_mhz": _times(max(_numbers(self._gpu_clocks), default=None), 1e-6),
            "gpu_temperature_c": _times(max(_numbers(self._gpu_temperatures), default=None), 1e-3),
            "available_memory_mb": _times(memory.get("MemAvailable"), 1024e-6),
            "quota_processors": None if self._quota is None else self._quota.processors,
        }
        gpu_values = self._gpu.values() if self._gpu is not None else {}
        return {**_known(values), **_known(gpu_values)}

    def _stat(self) -> _Stat:
        with suppress(OSError, ValueError):
            lines = (self._root / "proc/stat").read_text(encoding="ascii").splitlines()
            rows = [line.split() for line in lines if line.startswith(_ALL)]
            return {name: list(map(int, ticks)) for name, *ticks in rows if len(ticks) > _STOLEN}
        return {}


def _busy(stat: _Stat) -> dict[int, float]:
    return {
        int(name.removeprefix(_ALL)): sum(ticks[place] for place in _WORKING) / _TICKS
        for name, ticks in stat.items()
        if name != _ALL
    }


def _spent(stat: _Stat) -> dict[str, float]:
    if _ALL not in stat:
        return {}
    ticks = stat[_ALL]
    return {"machine_busy_s": sum(ticks[place] for place in _TAKEN) / _TICKS, "stolen_s": ticks[_STOLEN] / _TICKS}


def _at_work(worked: Mapping[int, float], seconds: float) -> list[int]:
    """Processors whose clocks count: the busy ones, or the busiest where ticks are too coarse."""
    busy = [cpu for cpu, spent in worked.items() if spent >= _BUSY * seconds]
    most = max(worked.values(), default=0.0)
    return (busy or [cpu for cpu, spent in worked.items() if spent == most])[:_MOST_CLOCKS]


def _numbers(paths: Iterable[Path]) -> list[float]:
    return [value for value in map(number, paths) if value is not None]


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None


def _times(value: float | None, unit: float) -> float | None:
    return value * unit if value is not None else None


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
