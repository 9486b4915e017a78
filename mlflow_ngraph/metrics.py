"""The formulas of the paper (sections V-A4 and V-C), as pure functions.

``T_c(b)`` is the throughput in samples/s of compiler ``c`` at batch size ``b``. Arguments may be numbers or
arrays of equal shape.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Number = TypeVar("Number", float, NDArray[np.float64])


def speedup(throughput: Number, baseline: Number) -> Number:
    """``S_c(b) = T_c(b) / T_identity(b)``; above 1 the compiler is faster than eager execution."""
    return throughput / baseline


def relative_throughput_rate(throughput: Number, at_batch_1: Number) -> Number:
    """``RTR_c(b) = T_c(b) / T_c(1)``: how often the throughput of batch size 1 is reached."""
    return throughput / at_batch_1


def absolute_scaling_efficiency(throughput: Number, at_batch_1: Number, batch: int) -> Number:
    """``ASE_c(b) = T_c(b) / (b * T_c(1))``; 1.0 is perfect batch parallelism."""
    return throughput / (batch * at_batch_1)


def batch_scaling_resilience(ase: Number, ase_baseline: Number) -> Number:
    """``BSR_c(b) = ASE_c(b) / ASE_identity(b)``; above 1 the compiler keeps its efficiency better than eager."""
    return ase / ase_baseline


def cpu_reduction(cpu_percent: float, baseline_percent: float) -> float:
    """Relative reduction of CPU usage against identity: ``1 - CPU_c(b) / CPU_identity(b)``."""
    return 1.0 - cpu_percent / baseline_percent


def depth_slope(depths: ArrayLike, speedups: ArrayLike) -> float:
    """Least-squares slope of the speed-up over depth, in speed-up per stacked block.

    Raises
    ------
    ValueError: fewer than two different depths.
    """
    x, y = np.asarray(depths, float), np.asarray(speedups, float)
    if np.unique(x).size < 2:
        raise ValueError("a slope needs at least two different depths")
    centred = x - x.mean()
    return float(centred @ (y - y.mean()) / (centred @ centred))


def depth_retention(depths: ArrayLike, speedups: ArrayLike) -> float:
    """Speed-up at the deepest stack divided by the speed-up at depth one.

    Raises
    ------
    ValueError: depth one is missing.
    """
    x, y = np.asarray(depths, float), np.asarray(speedups, float)
    if 1.0 not in x:
        raise ValueError("retention needs the speed-up at depth one")
    return float(y[x.argmax()] / y[x == 1.0][0])
