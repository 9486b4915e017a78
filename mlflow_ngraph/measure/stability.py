"""Whether the machine was quiet enough for a number to be trusted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

TICK_S = 0.01
"""The kernel counts the CPU time of the whole machine in steps of this length, on each processor."""
SIGMA_PER_MAD = 1.4826
"""The standard deviation of a normal distribution in units of its median absolute deviation."""


@dataclass(frozen=True)
class SliceFacts:
    """What a slice says about the machine."""

    median_s: float
    """Median duration of its repetitions."""
    wall_s: float
    cpu_s: float
    """CPU time of the measuring process."""
    machine_busy_s: float
    """CPU time of all processes together."""


def problem(
    slices: Sequence[SliceFacts], processors: int, max_foreign_cpu_percent: float, max_spread: float
) -> str | None:
    """Why the numbers of a cell may not be trusted, with a remedy; None if nothing speaks against them.

    Parameters
    ----------
    processors: of the whole machine.
    max_foreign_cpu_percent: largest share of the machine that other processes may have used.
    max_spread: largest robust coefficient of variation of the slice medians (1.4826 MAD / median); needs three slices.
    """
    foreign = foreign_cpu_percent(slices, processors)
    if foreign > max_foreign_cpu_percent:
        return f"other processes used {foreign:.0f} % of the machine meanwhile; stop them, then measure again with --resume"
    spread = slice_spread(slices)
    if spread is not None and spread > max_spread:
        return f"the medians of its slices scatter by {100 * spread:.0f} %; quiet the machine, then measure again with --resume"
    return None


def foreign_cpu_percent(slices: Sequence[SliceFacts], processors: int) -> float:
    """The share of the machine that other processes certainly used: what clock ticks could explain is deducted."""
    wall = sum(part.wall_s for part in slices)
    foreign = sum(part.machine_busy_s - part.cpu_s for part in slices) - TICK_S * processors * len(slices)
    return 100 * max(0.0, foreign) / (wall * processors)


def slice_spread(slices: Sequence[SliceFacts]) -> float | None:
    """The robust coefficient of variation of the slice medians, or None for fewer than three slices."""
    medians = [part.median_s for part in slices]
    if len(medians) < 3:
        return None
    centre = statistics.median(medians)
    return SIGMA_PER_MAD * statistics.median(abs(value - centre) for value in medians) / centre
