"""Objectives and limits of a choice, the same for every verb that chooses.

Imports nothing that takes long: the command line makes its options from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.metrics import CELL_METRICS, Metric

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

OBJECTIVES = {
    "throughput": "throughput",
    "latency": "latency_p50_ms",
    "cpu": "cpu_percent",
    "memory": "peak_memory_mb",
    "energy": "energy_per_sample_j",
    "size": "engine_size_mb",
}
"""Metrics by short names. The latency is the median: what one caller sees, which a few slow calls do not move."""

AS_GOOD = 0.03
"""Relevant difference: choices that differ by less are equally good, for races and findings too."""

SECOND = {"engine_size_mb": "the smaller engine", "peak_memory_mb": "less memory"}
"""Tie-breakers, in this order."""

Raced = Literal["throughput", "latency"]
"""Objectives of which every round of a study has a figure, so that lanes can race for them."""

Side = Literal["max", "min"]


@dataclass(frozen=True)
class Limit:
    """A bound on a metric; a cell without the metric does not satisfy it."""

    metric: str
    bound: Side
    value: float

    def kept(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """Mask of rows that satisfy the limit."""
        import numpy as np

        numbers = frame[self.metric].to_numpy(float, na_value=np.nan)
        with np.errstate(invalid="ignore"):
            keeps: NDArray[np.bool_] = numbers <= self.value if self.bound == "max" else numbers >= self.value
        return keeps

    def kept_by(self, value: float | None) -> bool:
        """True if a number satisfies the limit; a missing one does not."""
        if value is None:
            return False
        return value <= self.value if self.bound == "max" else value >= self.value

    def __str__(self) -> str:
        return f"{self.metric} {'≤' if self.bound == 'max' else '≥'} {self.value:g}"


@dataclass(frozen=True)
class Bound:
    """A limit that verbs have an option for."""

    metric: str
    side: Side
    metavar: str
    meaning: str


BOUNDS = {
    "max_latency_ms": Bound("latency_p99_ms", "max", "MS", "99th percentile of the latency at most."),
    "max_cpu_percent": Bound("cpu_percent", "max", "%", "CPU use at most, of the whole machine."),
    "max_memory_mb": Bound("peak_memory_mb", "max", "MB", "Peak of resident memory at most."),
    "max_size_mb": Bound("engine_size_mb", "max", "MB", "Size of the engine at most."),
    "max_energy_j": Bound("energy_per_sample_j", "max", "J", "Energy per sample at most."),
    "min_throughput": Bound("throughput", "min", "N", "Samples per second at least."),
    "min_speedup": Bound("speedup", "min", "N", "Speed-up over the baseline of its study at least."),
}
"""By the names of their options, with ``_`` for ``-``."""


def limits(values: Mapping[str, float | None]) -> list[Limit]:
    """Limits from command-line options, by the keys of `BOUNDS`; None sets no limit."""
    return [Limit(BOUNDS[name].metric, BOUNDS[name].side, value) for name, value in values.items() if value is not None]


def option(limit: Limit) -> str:
    """Format a limit as a command-line option."""
    for name, bound in BOUNDS.items():
        if (bound.metric, bound.side) == (limit.metric, limit.bound):
            return f"--{name.replace('_', '-')} {limit.value:g}"
    return f"--{limit.bound} {limit.metric}={limit.value:g}"


def objective(
    name: str, metrics: Mapping[str, Metric] = CELL_METRICS, others: Mapping[str, str] | None = None
) -> Metric:
    """Look up the metric of an objective: a key of `OBJECTIVES` or ``others``, or the name of a metric.

    Raises `UnknownNameError`, or `UsageError` for a metric of which neither high nor low is better.
    """
    known = {**OBJECTIVES, **(others or {})}
    metric = known.get(name, name)
    if metric not in metrics:
        raise UnknownNameError("objective", name, [*known, *metrics])
    if metrics[metric].better == "neither":
        raise UsageError(f"neither a high nor a low {metric} is better: choose one of {', '.join(known)}")
    return metrics[metric]
