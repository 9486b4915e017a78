"""OpenCells: tracks the cells of a workload without a result, and journals each verdict or omission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes.child import ChildFailure, OutOfTime
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class CellResult:
    """The verdict of a cell with its reason."""

    verdict: Verdict
    reason: str = ""
    """The cause of a verdict other than ``ok``, or a remark."""
    noise: str = ""
    """Disturbances of the machine during the measurement."""
    tail: str = ""
    """The end of the process's log."""


class OpenCells:
    """Writes one result per cell to the journal: a verdict, or the reason why it is not measured.

    ``missing`` are batch sizes without a final verdict, by lane.
    """

    def __init__(self, session: Session, missing: dict[str, list[int]]) -> None:
        self._session = session
        self._missing = missing
        self._closed: set[tuple[str, int]] = set()

    def of(self, lane: Lane) -> list[int]:
        """Batch sizes of a lane without a final verdict when the session began."""
        return self._missing.get(lane.id, [])

    def wanted(self, lane: Lane) -> set[int]:
        """Batch sizes of a lane to measure; the baseline has those of all lanes."""
        if lane.compiler_label == self._session.plan.study.baseline_label:
            return {batch for batches in self._missing.values() for batch in batches}
        return set(self.of(lane))

    def is_open(self, lane: Lane, batch: int) -> bool:
        """Return True while a cell has no result; after it the lane only accompanies others."""
        return batch in self.of(lane) and (lane.id, batch) not in self._closed

    def close(
        self,
        lane: Lane,
        batch: int,
        result: CellResult,
        warm_up: Mapping[str, Any] | None = None,
        engine: str | None = None,
    ) -> None:
        """Write the verdict of a cell, with the id of its engine where the cell was never ready."""
        self._closed.add((lane.id, batch))
        self._session.journal.append(
            "cell_finished",
            cell=lane.cell(batch),
            lane=lane.id,
            batch=batch,
            verdict=result.verdict.value,
            reason=result.reason,
            noise=result.noise,
            stderr_tail=result.tail,
            warm_up=warm_up or {},
            **({} if engine is None else {"engine": engine}),
        )

    def leave_out(self, lane: Lane, batch: int, reason: str, *, final: bool = False) -> None:
        """Record a cell as not measured; see `Session.leave_out`."""
        self._closed.add((lane.id, batch))
        self._session.leave_out(lane, batch, reason, final=final)

    def fail(self, lane: Lane, batches: Iterable[int], failure: ChildFailure) -> None:
        """Record a failure as the result of those cells that are open, unless the study itself is gone."""
        self._session.require_folder()
        for batch in [batch for batch in batches if self.is_open(lane, batch)]:
            if isinstance(failure, OutOfTime):
                self.leave_out(lane, batch, failure.reason)
            else:
                self.close(lane, batch, CellResult(failure.verdict, failure.reason, tail=failure.tail))

    def refuse(self, lane: Lane, batches: Iterable[int], verdict: Verdict, reason: str) -> None:
        """Record cells as failed before anything is built; the baseline need not accompany them."""
        refused = list(batches)
        self.fail(lane, refused, ChildFailure(verdict, reason))
        self._missing[lane.id] = [batch for batch in self.of(lane) if batch not in refused]
