"""A study on its way to the tracking server, workload by workload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlflow_ngraph.errors import DiskFullError
from mlflow_ngraph.execute import interruption
from mlflow_ngraph.execute.fold import Fold
from mlflow_ngraph.execute.journal import Journal, Reader
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.execute.record import LaneRecord, StudyRecord
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.recorder import Recorder

_log = logging.getLogger(__name__)


class Recording:
    """Passes a study on to the tracking server. A server that fails costs nothing but a later sync.

    What it does for a workload depends on that workload alone, however long the study is: the journal is read on from
    where it ended the last time.

    Parameters
    ----------
    recorder : Recorder | None
        Writes to the server; None where nothing is recorded.
    directory : Path
        Of the study.
    """

    def __init__(self, recorder: Recorder | None, directory: Path, journal: Journal) -> None:
        self.where: Mapping[str, str] = {}
        """Where to look at the results in MLflow, by name; empty when nothing was recorded."""
        self.problem = ""
        """Why the server does not have everything, or empty."""
        self._recorder = recorder
        self._directory = directory
        self._journal = journal
        self._reader = Reader(directory)
        self._fold = Fold()
        self._pending: set[str] = set()
        """Lanes of workloads that have come to their end."""
        self._known: dict[str, frozenset[tuple[int, float]]] = {}
        """The cells of each lane when earlier sessions ended, or it was recorded."""

    def before(self) -> StudyRecord:
        """What earlier sessions left. Nobody asks for their figures yet."""
        self._fold.extend(self._reader.new())
        record = self._fold.record.so_far()
        self._known = {lane_id: _cells(lane) for lane_id, lane in record.lanes.items()}
        return record

    def record(self, workload: str | None = None) -> StudyRecord:
        """What the journal says by now, with the figures of one workload up to date, or of all of them."""
        self._fold.extend(self._reader.new())
        return self._fold.derived(workload)

    def open(self, record: StudyRecord) -> None:
        """Make or continue the run of the study."""
        self._attempt(lambda recorder: recorder.open(record, self._directory))

    def again(self, record: StudyRecord) -> None:
        """Make sure of everything that earlier sessions measured: what of it the server has is not known."""
        self._pending.update(record.lanes)
        self.open(record)

    def workload(self, workload: WorkloadPlan, *, now: bool = True) -> None:
        """Record the lanes of a finished workload.

        Parameters
        ----------
        now : bool
            False where somebody waits for the end: `close` does it then.
        """
        lane_ids = [lane.id for lane in workload.lanes]
        self._pending.update(lane_ids)
        if self._recorder is None or self.problem or not now:
            return
        record = self.record(str(workload.ref))
        self._attempt(lambda recorder: self._record(recorder, record, lane_ids))

    def close(self, record: StudyRecord, status: str) -> None:
        """Record what is still pending, then the study itself. One more try after an earlier failure.

        Of a study that has not come to its end, that are also cells whose workload has not.

        Somebody who interrupts a study does not wait for a server that failed before.
        """
        if self._recorder is None:
            return
        try:
            self._finish(record, status)
        finally:
            self.leave()

    def leave(self) -> None:
        """Give no more signs of life of the study run."""
        if self._recorder is not None:
            self._recorder.rest()

    def _finish(self, record: StudyRecord, status: str) -> None:
        self._journal.tell("recording_started", interrupted=status == "KILLED")
        if self.problem and status != "KILLED":
            self.problem = ""
            self._attempt(lambda recorder: recorder.preflight())
            if not self.problem:
                # Lanes that an earlier session measured may be missing on the server as well.
                self.again(record)
        if not self.problem:
            self._attempt(lambda recorder: self._close(recorder, record, status))

    def _close(self, recorder: Recorder, record: StudyRecord, status: str) -> None:
        begun = {
            lane_id for lane_id, lane in record.lanes.items() if _cells(lane) != self._known.get(lane_id, frozenset())
        }
        self._record(recorder, record, [lane for lane in record.lanes if lane in self._pending | begun])
        run_id = recorder.close(record, status)
        self.where = recorder.where()
        self._journal.append("study_recorded", run_id=run_id)

    def _record(self, recorder: Recorder, record: StudyRecord, lane_ids: Sequence[str]) -> None:
        for lane_id in lane_ids:
            if record.lanes[lane_id].cells:
                run_id = recorder.record_lane(record, lane_id)
                self._journal.append("lane_recorded", lane=lane_id, run_id=run_id)
            self._pending.discard(lane_id)
            self._known[lane_id] = _cells(record.lanes[lane_id])

    def _attempt(self, step: Callable[[Recorder], object]) -> None:
        if self._recorder is None:
            return
        with interruption.whole(breakable=True):
            try:
                step(self._recorder)
            except KeyboardInterrupt:
                self.problem = "interrupted while the tracking server was written to"
                raise
            except Exception as error:  # noqa: BLE001
                # Whatever a client library raises must not cost a measurement; the journal has everything.
                _log.debug("recording failed", exc_info=True)
                self.problem = connection.one_line(error, self._recorder.tracking_uri) or type(error).__name__
                with suppress(DiskFullError):  # what is measured next says so; what was measured is safe
                    self._journal.append("recording_failed", reason=self.problem)


def _cells(lane: LaneRecord) -> frozenset[tuple[int, float]]:
    """What tells that a lane was measured further."""
    return frozenset((batch, cell.finished_at) for batch, cell in lane.cells.items())
