"""RaceLimits: checks cells of a race against the study's limits, and bars those beyond a limit from winning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from mlflow_ngraph.execute.derive import own_metrics
from mlflow_ngraph.execute.record import CellRecord, EngineRecord, Lane, LaneRecord
from mlflow_ngraph.measure.racing import Race
from mlflow_ngraph.objectives import Limit
from mlflow_ngraph.study import Study
from mlflow_ngraph.verdicts import Verdict

ONLY_GROWING = ("engine_size_mb", "peak_memory_mb")
"""Figures that further rounds cannot lower."""
_P99 = "latency_p99_ms"


class RaceLimits:
    """Tracks the study's limits for the cells of a race.

    Cells beyond a limit are barred in the race: they displace no other. ``lanes`` has lane and batch size of each cell.
    """

    def __init__(self, study: Study, race: Race, lanes: Mapping[str, tuple[Lane, int]]) -> None:
        self._limits = study.kept_limits
        self._baseline_label = study.baseline_label
        self._race = race
        self._lanes = lanes
        of_cell = study.adaptive.max_repetitions if study.repetitions == "auto" else study.repetitions
        self._most = of_cell * len(lanes)
        """Upper bound of a cell's repetitions, with those that departed cells left over."""
        self._slices: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._broken: dict[str, Limit] = {}

    def add_slice(self, cell: str, taken: dict[str, Any]) -> None:
        if self._limits:
            self._slices[cell].append(taken)

    def too_large(self, engine: EngineRecord) -> str:
        """Explain why an engine is too large to be measured; empty when it is not."""
        size_mb = engine.size_bytes / 1e6
        for limit in self._limits:
            if limit.metric == "engine_size_mb" and not limit.kept_by(size_mb):
                return f"its engine has {size_mb:.1f} MB, and the limit is {limit}"
        return ""

    def judge(self, cell: str, engine: EngineRecord, requests: int) -> Limit | None:
        """Bar a cell that is beyond a limit, or admit it again.

        ``requests`` are inferences within a repetition. Returns the first limit that no further round can restore.
        """
        if not self._limits:
            return None
        lane, batch = self._lanes[cell]
        slices = self._slices[cell]
        metrics = _figures(lane, batch, engine, requests, slices, psutil.cpu_count() or 1)
        baseline = self._baseline(lane, batch)
        if baseline is not None and self._race.rounds(baseline):
            metrics["speedup"] = float(self._race.ratio(cell, baseline).value)
        broken = _broken(self._limits, metrics)
        if broken is None:
            self._race.barred.discard(cell)
            self._broken.pop(cell, None)
        else:
            self._race.barred.add(cell)
            self._broken[cell] = broken
        return _hopeless(self._limits, metrics, slices, self._most)

    def broken(self, cell: str) -> str:
        """The limit that a cell is beyond; empty when it keeps all."""
        return str(self._broken.get(cell, ""))

    def _baseline(self, lane: Lane, batch: int) -> str | None:
        return next(
            (
                cell
                for cell, (other, size) in self._lanes.items()
                if (other.compiler_label, other.precision, size) == (self._baseline_label, lane.precision, batch)
            ),
            None,
        )


def _figures(
    lane: Lane, batch: int, engine: EngineRecord, requests: int, slices: Sequence[Mapping[str, Any]], processors: int
) -> dict[str, float]:
    cell = CellRecord(
        lane.cell(batch),
        lane.id,
        batch,
        Verdict.OK,
        engine=engine.id,
        ready={"requests": requests},
        samples=[dict(part) for part in slices],
    )
    return own_metrics(LaneRecord(lane, engines=[engine]), cell, processors)


def _broken(limits: Sequence[Limit], metrics: Mapping[str, float]) -> Limit | None:
    return next((limit for limit in limits if not limit.kept_by(metrics.get(limit.metric))), None)


def _hopeless(
    limits: Sequence[Limit], metrics: Mapping[str, float], slices: Sequence[Mapping[str, Any]], most: int
) -> Limit | None:
    """The first limit that a cell cannot keep any more, even with ``most`` repetitions."""
    for limit in limits:
        if limit.bound == "max" and limit.metric in ONLY_GROWING and metrics.get(limit.metric, 0.0) > limit.value:
            return limit
        if limit.bound == "max" and limit.metric == _P99:
            late = sum(duration > limit.value * 1e6 for part in slices for duration in part["durations_ns"])
            # The percentile lies between two repetitions that are late already.
            if late - 1 >= 0.01 * (most - 1):
                return limit
    return None
