"""Recording: follows a study's journal, has `tracking.recorder` record its workloads, and retries after failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.execute.journal import FILE_NAME, Reader
from mlflow_ngraph.execute.record import LaneRecord, StudyRecord
from mlflow_ngraph.execute.replay import Fold
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder

_log = logging.getLogger(__name__)


class Notes(Protocol):
    """Receives events about the recording."""

    def append(self, event: str, **fields: Any) -> object:
        """Append an event to the journal of the study."""

    def tell(self, event: str, **fields: Any) -> None:
        """Pass an event to the observer without writing it."""


class Recording:
    """Uploads a study. A failing server costs no more than another attempt.

    The work per workload does not grow with the study: the journal is read on from its last end.

    ``events`` is the number of events of earlier sessions; None for all in the journal.
    """

    def __init__(self, recorder: Recorder, directory: Path, notes: Notes, events: int | None) -> None:
        self.where: Mapping[str, str] = {}
        """Links to the results in MLflow, by name; empty until everything is recorded."""
        self.problem = ""
        """Reason why the server lacks something so far; empty when it does not."""
        self._recorder = recorder
        self._directory = directory
        self._notes = notes
        self._reader = Reader(directory)
        self._fold = Fold()
        self._pending: set[str] = set()
        """Lanes of finished workloads."""
        self._fold.extend(islice(self._reader.new(), events))
        self._before = self._fold.record.snapshot()
        self._known = {lane_id: _cells(lane) for lane_id, lane in self._before.lanes.items()}
        """Cells of each lane at the end of earlier sessions, or when last recorded."""

    @property
    def waiting(self) -> int:
        """Number of finished lanes that the server lacks."""
        return len(self._pending)

    def open(self) -> None:
        """Create or continue the run of the study."""
        self._attempt(lambda: self._open(self._before))

    def resync(self) -> None:
        """Record all results of earlier sessions: the server may lack any of them."""
        record = self._record()
        self._pending.update(lane_id for lane_id, lane in record.lanes.items() if lane.cells)
        self._attempt(lambda: self._open(record))

    def _open(self, record: StudyRecord) -> None:
        self._recorder.open(record, self._directory)
        if self._recorder.place != record.recorded:
            self._notes.append("record_opened", reason="; ".join(self._recorder.notes), **asdict(self._recorder.place))

    def workload(self, workload: str, lane_ids: Sequence[str]) -> None:
        """Record the finished lanes of a workload; after a failure they wait with the others."""
        self._pending.update(lane_ids)
        if not self.problem:
            self._attempt(lambda: self._record_lanes(self._record(workload), lane_ids))
        self._say_who_waits()

    def retry(self) -> None:
        """Record the lanes that have waited since the server failed."""
        self._catch_up()
        if not self.problem:
            self._attempt(lambda: self._record_lanes(self._record(), sorted(self._pending)))
        self._say_who_waits()

    def close(self, status: str) -> None:
        """Record the pending lanes, then the study itself, with one more attempt after a failure.

        An unfinished study includes cells of unfinished workloads. An interrupted study does not wait for a server that
        failed before.

        ``status`` as MLflow has it: ``FINISHED``, ``FAILED`` or ``KILLED``.
        """
        try:
            self._notes.tell("recording_started", interrupted=status == "KILLED")
            if self.problem and status != "KILLED":
                self._catch_up()
            if not self.problem:
                self._attempt(lambda: self._close(self._record(), status))
            if self.problem and not (self._directory / FILE_NAME).is_file():
                # Nothing more can be recorded, and the run must not stay open for it.
                self._attempt(lambda: self._recorder.end(status), known=self.problem)
        finally:
            self._recorder.rest()

    def _catch_up(self) -> None:
        """Reach the server again. It may also lack lanes of earlier sessions."""
        problem, self.problem = self.problem, ""
        self._attempt(self._recorder.preflight, known=problem)
        if not self.problem:
            self.resync()

    def _record(self, workload: str | None = None) -> StudyRecord:
        """The current record, with figures of one workload or of all."""
        self._fold.catch_up(self._reader)
        return self._fold.derived(workload)

    def _close(self, record: StudyRecord, status: str) -> None:
        begun = {
            lane_id for lane_id, lane in record.lanes.items() if _cells(lane) != self._known.get(lane_id, frozenset())
        }
        self._record_lanes(record, [lane for lane in record.lanes if lane in self._pending | begun])
        run_id = self._recorder.close(record, status, answers(record))
        self.where = self._recorder.where()
        self._notes.append("study_recorded", run_id=run_id)

    def _record_lanes(self, record: StudyRecord, lane_ids: Sequence[str]) -> None:
        for lane_id in lane_ids:
            if record.lanes[lane_id].cells:
                record_lane(self._recorder, record, lane_id, self._notes.append)
            self._pending.discard(lane_id)
            self._known[lane_id] = _cells(record.lanes[lane_id])

    def _attempt(self, step: Callable[[], object], known: str = "") -> None:
        """Run a step; record a failure, unless it is the ``known`` one."""
        try:
            step()
        except Exception as error:  # noqa: BLE001
            # No exception of a client library may cost a measurement; the journal has everything.
            _log.debug("recording failed", exc_info=True)
            self.problem = connection.one_line(error, self._recorder.tracking_uri) or type(error).__name__
            if self.problem != known:
                self._notes.append("recording_failed", reason=self.problem)

    def _say_who_waits(self) -> None:
        if self.problem and self._pending:
            self._notes.tell("recording_waits", lanes=self.waiting, reason=self.problem)


def record_lane(recorder: Recorder, record: StudyRecord, lane_id: str, append: Callable[..., object]) -> None:
    """Record a lane, and append to the journal what it is on the server, unless the journal says so already."""
    lane = record.lanes[lane_id]
    found = recorder.record_lane(record, lane_id, lambda run_id: append("lane_opened", lane=lane_id, run_id=run_id))
    if (lane.runs[-1:], lane.models) != ((found.run_id,), found.models):
        append("lane_recorded", lane=lane_id, run_id=found.run_id, models=found.models)


def _cells(lane: LaneRecord) -> frozenset[tuple[int, float]]:
    """A fingerprint of a lane's progress."""
    return frozenset((batch, cell.finished_at) for batch, cell in lane.cells.items())
