"""CPU shares of a process and of all others, computed from sensor readings, with their errors.

The kernel charges the running process when its clock ticks: the machine's time is sampled once a tick. A process reads
its own time exactly for the asking thread, and up to the last tick for threads on other processors. Both may be far off
within a few ticks, so a share has an error and is None when that is too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TICK_S = 0.01
"""Resolution of the machine's CPU time; running processes are sampled at least as often."""
COARSEST = 0.1
"""Largest standard error of a share that is still reported."""
SURE = 2.33
"""Standard errors deducted before others are blamed: chance exceeds them in one of a hundred cells."""


@dataclass(frozen=True)
class Window:
    """CPU times of a process and the machine over a time window."""

    seconds: float
    cpu_s: float
    """CPU time of the process, all threads."""
    machine_busy_s: float | None
    """CPU time of all processors, the process included; None when unknown."""
    stolen_s: float = 0.0
    """Part of it that the hypervisor gave to other virtual machines."""

    @classmethod
    def of(cls, machine: Mapping[str, Any] | None) -> Window | None:
        """Window of a slice or a rate, from the fields of `mlflow_ngraph.devices.sensors.Change`."""
        if machine is None or "cpu_s" not in machine:
            return None
        counted = machine["counted"]
        return cls(machine["seconds"], machine["cpu_s"], counted.get("machine_busy_s"), counted.get("stolen_s", 0.0))


@dataclass(frozen=True)
class Foreign:
    """CPU use of other processes: fractions of all processors, from 0 to 1."""

    share: float
    error: float
    """Upper bound of the share's standard error."""
    stolen: float
    """Part of it that went to other virtual machines, from 0 to 1."""

    @property
    def certain(self) -> float:
        """The share less anything that ticks could explain."""
        return max(0.0, self.share - SURE * self.error)


def own_processors(windows: Sequence[Window], processors: int) -> float | None:
    """Number of processors that the process kept busy; None when the windows are too short.

    Parameters
    ----------
    processors : int
        Of the whole machine.
    """
    seconds = sum(window.seconds for window in windows)
    # The time since the last tick is missing for all threads but one, at the beginning and the end of a window.
    error_s = TICK_S * (processors - 1) * math.sqrt(len(windows) / 6)
    if not seconds or error_s > COARSEST * processors * seconds:
        return None
    return min(float(processors), sum(window.cpu_s for window in windows) / seconds)


def foreign(windows: Sequence[Window], processors: int) -> Foreign | None:
    """CPU use of other processes; None when the windows are too short or the machine does not report it.

    Parameters
    ----------
    processors : int
        Of the whole machine.
    """
    counted = [(window, window.machine_busy_s) for window in windows if window.machine_busy_s is not None]
    error = sampling_error([window.seconds for window, _ in counted])
    if error > COARSEST:
        return None
    capacity = processors * sum(window.seconds for window, _ in counted)
    own = min(capacity, sum(window.cpu_s for window, _ in counted))
    others = sum(busy - window.cpu_s for window, busy in counted)
    stolen = sum(window.stolen_s for window, _ in counted)
    share = min(max(0.0, others), capacity - own) / capacity
    return Foreign(share, error, min(1.0, stolen / others) if others > 0 else 0.0)


def sampling_error(seconds: Sequence[float]) -> float:
    """Largest standard error of a share counted in ticks over windows of these lengths.

    A tick finds a processor busy or idle, with the largest variance at even odds. All processors tick together and may
    be used together, so their number does not reduce the error. A window has one tick more or less than its length.
    """
    watched = sum(seconds)
    if not watched:
        return math.inf
    return math.sqrt(watched / TICK_S + len(seconds)) / 2 * TICK_S / watched
