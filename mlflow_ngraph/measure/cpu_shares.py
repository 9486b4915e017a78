"""Shares of the machine that a process and all others used, as far as the clocks that count them can tell.

The kernel charges whoever runs when its clock ticks: the time of the whole machine is a sample, one at a tick. A process
reads its own time exactly for the thread that asks, and up to the last tick for threads on other processors. Over windows of
a few ticks both may be far off; so a share is told with its error, and not at all where that is too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TICK_S = 0.01
"""The kernel counts the CPU time of the whole machine in steps of this length, and looks who runs at least as often."""
COARSEST = 0.1
"""A share of the machine whose standard error is larger than this is not told."""
SURE = 2.33
"""Standard errors that are deducted before others are blamed: chance alone exceeds them in one of a hundred cells."""


@dataclass(frozen=True)
class Window:
    """A time in which a process and the whole machine were watched."""

    seconds: float
    cpu_s: float
    """CPU time of the process, all threads."""
    machine_busy_s: float | None
    """CPU time of all processors, the process included; None where the machine does not tell."""
    stolen_s: float = 0.0
    """Of that, what the hypervisor gave to other virtual machines."""

    @classmethod
    def of(cls, machine: Mapping[str, Any] | None) -> Window | None:
        """The window of a slice or a rate, from the fields of `mlflow_ngraph.devices.sensors.Change`."""
        if machine is None or "cpu_s" not in machine:
            return None
        counted = machine["counted"]
        return cls(machine["seconds"], machine["cpu_s"], counted.get("machine_busy_s"), counted.get("stolen_s", 0.0))


@dataclass(frozen=True)
class Foreign:
    """What others used of the machine: shares of all its processors, from 0 to 1."""

    share: float
    error: float
    """Standard error of the share, at most."""
    stolen: float
    """The part of it, from 0 to 1, that went to other virtual machines."""

    @property
    def certain(self) -> float:
        """What remains of the share when everything that ticks could explain is deducted."""
        return max(0.0, self.share - SURE * self.error)


def own_processors(windows: Sequence[Window], processors: int) -> float | None:
    """How many processors the process kept busy; None where the windows are too short to tell.

    Parameters
    ----------
    processors : int
        Of the whole machine.
    """
    seconds = sum(window.seconds for window in windows)
    # What all threads but one have done since the last tick is missing at the beginning of a window, and at its end.
    error_s = TICK_S * (processors - 1) * math.sqrt(len(windows) / 6)
    if not seconds or error_s > COARSEST * processors * seconds:
        return None
    return min(float(processors), sum(window.cpu_s for window in windows) / seconds)


def foreign(windows: Sequence[Window], processors: int) -> Foreign | None:
    """The share of the machine that others used; None where the windows are too short to tell, or the machine is silent.

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
    """The largest standard error of a share of the machine that was counted in ticks over windows of these lengths.

    A tick finds a processor busy or not, which varies most where both are as likely. It comes on all processors at once,
    and so may what others do: more processors make the share no surer. A window has one tick more or less than its length.
    """
    watched = sum(seconds)
    if not watched:
        return math.inf
    return math.sqrt(watched / TICK_S + len(seconds)) / 2 * TICK_S / watched
