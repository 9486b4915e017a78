"""Checks of the machine for ``mlflow-ngraph doctor``: lock, swap, SMT, power mode, sensors, GPU settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from mlflow_ngraph.devices import probes, processors, sensor_files
from mlflow_ngraph.devices.nvml import PACKAGE, Nvml
from mlflow_ngraph.devices.sensors import ENERGY, POWER, Change, Reading, Sensors
from mlflow_ngraph.execute import machine_lock
from mlflow_ngraph.measure.stability import THROTTLED_SHARE

Status = Literal["ok", "warning", "problem"]
_MB = 2**20
_SWAP_MB = 64
"""Swapped memory that a machine does not miss."""
_HIDDEN = "not shown by the kernel (usual in a virtual machine)"
_NO_METER = "no meter that the kernel shows (usual in a virtual machine)"


@dataclass(frozen=True)
class CheckResult:
    """Result of a check."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    """Empty where none is needed."""


def _holder() -> Iterator[CheckResult]:
    folder, holder = machine_lock.lock_folder(), machine_lock.holder()
    container = probes.virtualization().get("container", "")
    if holder is not None:
        yield CheckResult(
            "measuring now", "warning", str(holder), "numbers taken meanwhile disturb each other; wait for it"
        )
    elif not os.access(folder, os.W_OK):
        remedy = f"name another folder in {machine_lock.VARIABLE}: without a lock no study starts"
        yield CheckResult("measuring now", "problem", f"cannot tell: {folder} cannot be written", remedy)
    elif container and machine_lock.VARIABLE not in os.environ:
        remedy = f"mount one folder into all containers of the machine, and name it in {machine_lock.VARIABLE}"
        yield CheckResult("measuring now", "ok", f"nobody within this container ({container})", remedy)
    else:
        yield CheckResult("measuring now", "ok", f"nobody (lock in {folder})")


def _swap() -> Iterator[CheckResult]:
    swap = psutil.swap_memory()
    if swap.total == 0:
        yield CheckResult("swap", "ok", "none")
        return
    usage = f"{swap.used / _MB:.0f} of {swap.total / _MB:.0f} MiB in use"
    if swap.used > _SWAP_MB * _MB:
        yield CheckResult("swap", "warning", usage, "free memory, or switch it off while measuring: sudo swapoff -a")
    else:
        yield CheckResult("swap", "ok", usage)


def _threads_of_cores() -> Iterator[CheckResult]:
    shared = probes.threads_share_cores()
    if shared is None:
        yield CheckResult("threads of a core", "ok", _HIDDEN)
    elif shared:
        remedy = f"for steadier numbers: threads: {probes.cpu().cores} in the study, or switch the second threads off: "
        remedy += "echo off | sudo tee /sys/devices/system/cpu/smt/control"
        yield CheckResult("threads of a core", "ok", "two, which compete for it", remedy)
    else:
        yield CheckResult("threads of a core", "ok", "one")


def _power_mode() -> Iterator[CheckResult]:
    mode = probes.power_mode()
    if mode:
        remedy = "compare numbers of one mode only (sudo nvpmodel -m ID sets it); hold its clocks: sudo jetson_clocks"
        yield CheckResult("power mode", "ok", mode, remedy)


def _sensors(root: Path = Path("/")) -> Iterator[CheckResult]:
    sensors = Sensors(root, accelerator="cpu" if probes.gpu() is None else "cuda")
    start = sensors.begin()
    change = sensors.since(start)
    for check, unit, name in (("clock", "MHz", "clock_mhz"), ("temperature", "°C", "temperature_c")):
        of_cpu, of_gpu = change.values.get(name), change.values.get(f"gpu_{name}")
        readings = [] if of_cpu is None else [f"{of_cpu:.0f} {unit}"]
        readings += [] if of_gpu is None else [f"GPU {of_gpu:.0f} {unit}"]
        yield CheckResult(check, "ok", f"{', '.join(readings)} now" if readings else _HIDDEN)
    yield _throttling(start, change)
    known = {
        name.removeprefix(prefix) for name in sensors.names() for prefix in (ENERGY, POWER) if name.startswith(prefix)
    }
    yield _energy(sorted(known), sensor_files.unreadable_meters(root))


def _throttling(start: Reading, change: Change) -> CheckResult:
    """Check for a CPU quota on this process, and for its effects."""
    quota, periods = change.values.get("quota_processors"), start.counters.get("quota_periods", 0.0)
    times = start.counters.get("quota_throttled", 0.0)
    if quota is not None and times > THROTTLED_SHARE * periods:
        remedy = "raise the quota, or measure with fewer threads; counted since the container began"
        return CheckResult("throttling", "warning", processors.throttled(times, periods, quota), remedy)
    counters = {"throttled": "for heat", "over_current": "for the current", "gpu_throttled_s": "of the GPU, for heat"}
    counters |= {"quota_throttled": f"by the quota of {quota or 0:.3g} processors"}
    counted = [text for name, text in counters.items() if name in change.counted]
    return CheckResult("throttling", "ok", f"counted: {', '.join(counted)}" if counted else _HIDDEN)


def _energy(known: list[str], unreadable: list[Path]) -> CheckResult:
    """Check which meters count into the energy of an inference."""
    if not unreadable:
        return CheckResult("energy", "ok", f"of {', '.join(known)}" if known else _NO_METER)
    which = f"of {', '.join(known)}; " if known else ""
    remedy = "let everybody read them until the next start, if you trust everybody with a hint of what others compute: "
    remedy += "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj /sys/class/powercap/intel-rapl:*:*/energy_uj"
    return CheckResult(
        "energy", "warning", f"{which}{len(unreadable)} meters of the processors only root may read", remedy
    )


def _gpu() -> Iterator[CheckResult]:
    gpu = probes.gpu()
    if gpu is None:
        return
    nvml = Nvml.find()
    if nvml is None:
        if not probes.jetpack_release():  # whose sensors are those of the kernel
            remedy = f"pip install {PACKAGE}, which reads its clocks, temperature and energy"
            yield CheckResult("GPU settings", "warning", f"{gpu.name} does not tell", remedy)
        return
    settings = nvml.settings()
    details = [
        "" if settings.persistent is None else f"persistence mode {'on' if settings.persistent else 'off'}",
        "" if settings.clock_mhz is None else f"clock {settings.clock_mhz:.0f} MHz now",
        "" if settings.most_clock_mhz is None else f"at most {settings.most_clock_mhz:.0f} MHz",
        "" if settings.power_limit_w is None else f"limit {settings.power_limit_w:.0f} W",
    ]
    summary = ", ".join(filter(None, details)) or f"{gpu.name} does not tell"
    steady = "for steadier clocks: sudo nvidia-smi --lock-gpu-clocks=MHZ (undone by --reset-gpu-clocks)"
    if settings.persistent is False:
        yield CheckResult(
            "GPU settings", "warning", summary, f"keep its driver loaded: sudo nvidia-smi -pm 1; {steady}"
        )
    else:
        yield CheckResult("GPU settings", "ok", summary, "" if probes.jetpack_release() else steady)


CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    _holder,
    _swap,
    _threads_of_cores,
    _power_mode,
    _sensors,
    _gpu,
)
