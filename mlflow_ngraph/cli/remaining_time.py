"""Remaining time of a study: estimates of its parts, corrected by the pace of those that are done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Part = tuple[str, str]
"""``prepare`` and a workload, ``build`` and a lane, or a lane and a batch size."""
_BOUNDS = (0.3, 4.0)
"""Bounds of the pace: one odd part does not make the rest absurd."""
_TRUSTED = 0.1
"""The share of a study that has to be done until its own pace weighs as much as the estimate made before it."""


@dataclass
class TimeToGo:
    """The parts of a session that are done, by their estimated seconds."""

    expected_s: float
    """Estimated seconds of the whole session."""
    _done: dict[Part, float] = field(default_factory=dict)
    _under_way: Mapping[Part, float] = field(default_factory=dict)
    _pace: float = 1.0

    def measuring(self, parts: Mapping[Part, float]) -> None:
        """Some cells share a round: when the first of them ends, most of the time of the others is spent, too."""
        self._under_way = parts

    def finished(self, part: Part, estimated_s: float, elapsed_s: float) -> None:
        """A part is done, so many seconds after the session began; one that was done before counts once."""
        self._done.setdefault(part, estimated_s)
        spent_on = sum({**self._under_way, **self._done}.values())
        prior = _TRUSTED * self.expected_s
        low, high = _BOUNDS
        if spent_on + prior > 0:
            self._pace = min(high, max(low, (elapsed_s + prior) / (spent_on + prior)))

    @property
    def seconds(self) -> float:
        """Seconds still to go."""
        return max(0.0, self.expected_s - sum(self._done.values())) * self._pace
