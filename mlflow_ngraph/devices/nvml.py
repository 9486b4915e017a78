"""Sensors and settings of an NVIDIA GPU, through the driver's management library (NVML)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

PACKAGE = "nvidia-ml-py"


@dataclass(frozen=True)
class GpuSettings:
    """Settings that bound the speed of a GPU. None: the driver does not report it."""

    persistent: bool | None
    """True if the driver stays loaded while nobody uses the GPU."""
    clock_mhz: float | None
    most_clock_mhz: float | None
    power_limit_w: float | None


class Nvml:
    """One GPU. None stands for values that its driver does not report."""

    def __init__(self, library: Any, device: Any) -> None:
        self._library = library
        self._device = device

    @classmethod
    def find(cls) -> Nvml | None:
        """The GPU that CUDA counts first, or None without the package nvidia-ml-py, a driver or a GPU."""
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml, _visible(pynvml))
        except Exception:  # noqa: BLE001 - a missing sensor is no reason not to measure
            return None

    def energy_j(self) -> float | None:
        """Joules used since the driver was loaded."""
        return _read(lambda: self._library.nvmlDeviceGetTotalEnergyConsumption(self._device), 1e-3)

    def power_w(self) -> float | None:
        """Power now; most drivers report the mean of the last second."""
        return _read(lambda: self._library.nvmlDeviceGetPowerUsage(self._device), 1e-3)

    def values(self) -> dict[str, float | None]:
        lib, device = self._library, self._device
        return {
            "gpu_clock_mhz": _read(lambda: lib.nvmlDeviceGetClockInfo(device, lib.NVML_CLOCK_SM)),
            "gpu_temperature_c": _read(lambda: lib.nvmlDeviceGetTemperature(device, lib.NVML_TEMPERATURE_GPU)),
        }

    def held_back_s(self) -> dict[str, float | None]:
        """Seconds so far in which clocks were throttled, for heat and for the power limit."""
        lib = self._library
        return {
            "gpu_throttled_s": _read(partial(self._violation_ns, lib.NVML_PERF_POLICY_THERMAL), 1e-9),
            "gpu_power_capped_s": _read(partial(self._violation_ns, lib.NVML_PERF_POLICY_POWER), 1e-9),
        }

    def settings(self) -> GpuSettings:
        lib, device = self._library, self._device
        persistent = _read(lambda: lib.nvmlDeviceGetPersistenceMode(device))
        return GpuSettings(
            persistent=None if persistent is None else bool(persistent),
            clock_mhz=_read(lambda: lib.nvmlDeviceGetClockInfo(device, lib.NVML_CLOCK_SM)),
            most_clock_mhz=_read(lambda: lib.nvmlDeviceGetMaxClockInfo(device, lib.NVML_CLOCK_SM)),
            power_limit_w=_read(lambda: lib.nvmlDeviceGetEnforcedPowerLimit(device), 1e-3),
        )

    def _violation_ns(self, policy: int) -> float:
        return float(self._library.nvmlDeviceGetViolationStatus(self._device, policy).violationTime)


def _visible(library: Any) -> Any:
    """Handle of the first GPU that ``CUDA_VISIBLE_DEVICES`` leaves, by its index or identifier."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = "0" if visible is None else visible.partition(",")[0].strip()
    if not first or first.startswith("-"):
        raise LookupError("every GPU is hidden")
    if first.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(first))
    return library.nvmlDeviceGetHandleByUUID(first)


def _read(ask: Callable[[], float], unit: float = 1.0) -> float | None:
    """Query the driver; drivers of notebooks, virtual machines and Jetsons leave many queries unanswered."""
    with suppress(Exception):
        return float(ask()) * unit
    return None
