"""What a lane has in memory: an engine for one batch size, and what has been measured of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.measure.statistics import mean_duration


@dataclass
class Loaded:
    """What is known about the engine that a lane has loaded."""

    batch: int
    problem: str | None
    first_call_s: float
    warm_up: dict[str, Any] = field(default_factory=dict)
    slices: list[SliceFacts] = field(default_factory=list)

    durations: list[NDArray[np.float64]] = field(default_factory=list)
    """Of each slice, in nanoseconds."""
    requests: int = 1
    """Inferences in flight within one repetition."""
    loading: int = 0
    """How often a fresh process has loaded the engine again."""
    loading_s: float = 0.0
    """What loading it again will take, about, with the calls after it and without imports."""

    def reach(self) -> float | None:
        """How far the interval of the mean duration reaches, as a share of the mean; None with one round."""
        return mean_duration(self.durations).reach()

    @property
    def repetitions(self) -> int:
        """Timed repetitions so far."""
        return sum(part.size for part in self.durations)

    @property
    def timed_s(self) -> float:
        """Seconds spent in slices."""
        return sum(part.wall_s for part in self.slices)
