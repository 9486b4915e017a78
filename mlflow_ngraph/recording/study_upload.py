"""A study on its way to the tracking server, workload by workload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.execute.journal import Reader
from mlflow_ngraph.execute.record import LaneRecord, StudyRecord
from mlflow_ngraph.execute.replay import Fold
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder

_log = logging.getLogger(__name__)


class Notes(Protocol):
    """Where is noted what a server has by now."""

    def append(self, event: str, **fields: Any) -> object:
        """Keep an event in the journal of the study."""

    def tell(self, event: str, **fields: Any) -> None:
        """Pass on an event that need not survive."""


class Recording:
    """Passes a study on to the tracking server. A server that fails costs nothing but another try.

    What it does for a workload depends on that workload alone, however long the study is: the journal is read on from
    where it ended the last time.

    Parameters
    ----------
    recorder : Recorder
        Writes to the server.
    directory : Path
        Of the study.
    notes : Notes
        Is told what the server has, and why it does not have everything.
    events : int | None
        Of the journal that earlier sessions wrote; None for all that it has.
    """

    def __init__(self, recorder: Recorder, directory: Path, notes: Notes, events: int | None) -> None:
        self.where: Mapping[str, str] = {}
        """Where to look at the results in MLflow, by name; empty until everything is recorded."""
        self.problem = ""
        """Why the server does not have everything so far, or empty."""
        self._recorder = recorder
        self._directory = directory
        self._notes = notes
        self._reader = Reader(directory)
        self._fold = Fold()
        self._pending: set[str] = set()
        """Lanes of workloads that have come to their end."""
        self._fold.extend(islice(self._reader.new(), events))
        self._before = self._fold.record.so_far()
        self._known = {lane_id: _cells(lane) for lane_id, lane in self._before.lanes.items()}
        """The cells of each lane when earlier sessions ended, or it was recorded."""

    @property
    def waiting(self) -> int:
        """How many lanes the server lacks that have come to their end."""
        return len(self._pending)

    def open(self) -> None:
        """Make or continue the run of the study."""
        self._attempt(lambda: self._recorder.open(self._before, self._directory))

    def resync(self) -> None:
        """Make sure of everything that earlier sessions measured: what of it the server has is not known."""
        record = self._record()
        self._pending.update(lane_id for lane_id, lane in record.lanes.items() if lane.cells)
        self._attempt(lambda: self._recorder.open(record, self._directory))

    def workload(self, workload: str, lane_ids: Sequence[str]) -> None:
        """Record the lanes of a finished workload; behind a server that failed before, they wait with the others.

        Parameters
        ----------
        workload : str
            Its reference.
        lane_ids : Sequence[str]
            The lanes that have come to their end.
        """
        self._pending.update(lane_ids)
        if not self.problem:
            record = self._record(workload)
            self._attempt(lambda: self._record_lanes(record, lane_ids))
        self._say_who_waits()

    def retry(self) -> None:
        """Try to catch up with what waits since the server failed."""
        self._catch_up()
        if not self.problem:
            record = self._record()
            self._attempt(lambda: self._record_lanes(record, sorted(self._pending)))
        self._say_who_waits()

    def close(self, status: str) -> None:
        """Record what is still pending, then the study itself. One more try after an earlier failure.

        Of a study that has not come to its end, that are also cells whose workload has not.

        Somebody who interrupts a study does not wait for a server that failed before.

        Parameters
        ----------
        status : str
            As MLflow has it: ``FINISHED``, ``FAILED`` or ``KILLED``.
        """
        try:
            self._notes.tell("recording_started", interrupted=status == "KILLED")
            if self.problem and status != "KILLED":
                self._catch_up()
            if not self.problem:
                record = self._record()
                self._attempt(lambda: self._close(record, status))
        finally:
            self._recorder.rest()

    def _catch_up(self) -> None:
        """Reach the server again. Lanes that an earlier session measured may be missing there as well."""
        problem, self.problem = self.problem, ""
        self._attempt(self._recorder.preflight, known=problem)
        if not self.problem:
            self.resync()

    def _record(self, workload: str | None = None) -> StudyRecord:
        """What the journal says by now, with the figures of one workload up to date, or of all of them."""
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
                run_id = self._recorder.record_lane(record, lane_id)
                self._notes.append("lane_recorded", lane=lane_id, run_id=run_id)
            self._pending.discard(lane_id)
            self._known[lane_id] = _cells(record.lanes[lane_id])

    def _attempt(self, step: Callable[[], object], known: str = "") -> None:
        """Take a step. A failure is noted, unless it is the one that is ``known`` already."""
        try:
            step()
        except Exception as error:  # noqa: BLE001
            # Whatever a client library raises must not cost a measurement; the journal has everything.
            _log.debug("recording failed", exc_info=True)
            self.problem = connection.one_line(error, self._recorder.tracking_uri) or type(error).__name__
            if self.problem != known:
                self._notes.append("recording_failed", reason=self.problem)

    def _say_who_waits(self) -> None:
        if self.problem and self._pending:
            self._notes.tell("recording_waits", lanes=self.waiting, reason=self.problem)


def _cells(lane: LaneRecord) -> frozenset[tuple[int, float]]:
    """What tells that a lane was measured further."""
    return frozenset((batch, cell.finished_at) for batch, cell in lane.cells.items())
