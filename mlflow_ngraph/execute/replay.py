"""Fold: builds a `StudyRecord` from a journal, with every metric derived from the journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import events as known
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.record import CellRecord, EngineRecord, Lane, LaneRecord, Place, StudyRecord
from mlflow_ngraph.parity import Parity, worse
from mlflow_ngraph.processes.stops import AGAIN
from mlflow_ngraph.text import shortened
from mlflow_ngraph.verdicts import Verdict

_TIMED = ("slice", "arrivals")
"""Event types that make up most of a journal."""


def load(directory: Path) -> StudyRecord:
    """Read the journal of a study directory.

    Raises as `journal.read`, and `JournalError` if the journal does not begin as the one of a study.
    """
    state = Fold()
    state.catch_up(journal.Reader(directory))
    with _named(directory):
        return state.derived()


def outline(directory: Path) -> StudyRecord:
    """Read the record without slices and figures, which take memory and time. Raises as `journal.read`."""
    state = Fold()
    state.extend(event for event in journal.read(directory) if event["event"] not in _TIMED)
    return state.record


class EventError(JournalError):
    """An event contradicts the events before it."""


def fold(events: Iterable[journal.Event]) -> StudyRecord:
    """Replay events; see `Fold`."""
    state = Fold()
    state.extend(events)
    return state.derived()


class Fold:
    """Replays events in order. A cell that was measured again keeps its last verdict and figures.

    A follower of a study keeps one `Fold` and extends it: no event is read twice, and only figures of changed workloads
    are derived again. The result does not depend on how the journal is cut, down to the last bit.

    The slices of all cells stay in memory: the record has them, and they are written as one table at the end.
    """

    def __init__(self) -> None:
        self._record: StudyRecord | None = None
        self._cells = _Cells()
        self._events = 0
        self._outdated: set[str] = set()
        """Workloads whose figures are out of date."""

    @property
    def record(self) -> StudyRecord:
        """The record with the figures derived so far. Later events change it. Raises `JournalError` without events."""
        if self._record is None:
            raise JournalError("the journal is empty: its study was killed before it began; start it again")
        return self._record

    def derived(self, workload: str | None = None) -> StudyRecord:
        """Return the `record` with current figures of one workload, or of all.

        Raises `JournalError` if there were no events, or figures cannot be derived.
        """
        # Statistics import SciPy, which is slow: only callers that want figures wait for it.
        from mlflow_ngraph.execute.derive import derive

        wanted = self._outdated if workload is None else self._outdated & {workload}
        try:
            derive(self.record, self._cells.companions, wanted)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise EventError(f"has samples that no study measures: {_shown(error)}") from error
        self._outdated = self._outdated - wanted
        return self.record

    def extend(self, events: Iterable[journal.Event]) -> None:
        """Replay further events.

        Raises `JournalError` if the first event does not start a study, or an event contradicts those before it.
        """
        for event in events:
            self._events += 1
            where = f"line {self._events} ({shortened(event['event'])}) is none that a study writes there"
            if problem := known.wrong(event):
                raise EventError(f"{where}: {problem}")
            try:
                self._take(event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise EventError(f"{where}: {_shown(error)}") from error

    def catch_up(self, reader: journal.Reader) -> None:
        """Replay the events that a reader has not read. Raises as `extend` and `journal.Reader.new`; names the file."""
        with _named(reader.directory):
            self.extend(reader.new())

    def _take(self, event: journal.Event) -> None:
        kind = event["event"]
        if kind == "study_started":
            self._record = _started(event)
        elif self._record is None:
            raise JournalError(f"the journal begins with {kind!r} instead of the start of a study")
        elif kind in _RECORDED:
            _RECORDED[kind](self._record, event)
            self._outdated.update(_touched(self._record, event))
        elif kind in _OF_CELLS:
            self._cells.apply(self._record, event)
            self._outdated.update(_touched(self._record, event))


@contextmanager
def _named(directory: Path) -> Iterator[None]:
    """Add the file name to an error."""
    try:
        yield
    except EventError as error:
        raise JournalError(f"{directory / journal.FILE_NAME}: {error}") from error


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {shortened(error.args[0] if error.args else '')}"


def _touched(record: StudyRecord, event: journal.Event) -> Iterable[str]:
    """Workloads whose figures an event may change."""
    if event["event"] in ("lane_opened", "lane_recorded"):
        return ()
    if "lane" in event:
        return (record.lanes[event["lane"]].lane.workload,)
    if "workload" in event:
        return (event["workload"],)
    # The lanes themselves may have changed.
    return {lane.lane.workload for lane in record.lanes.values()} if event["event"] == "session_started" else ()


def _started(event: journal.Event) -> StudyRecord:
    return StudyRecord(
        id=event["study_id"],
        name=event["study"]["name"],
        device=event["device"],
        study=event["study"],
        fingerprint=event["fingerprint"],
        versions=event["versions"],
        started_at=event["at"],
        finished_at=None,
        lanes=_lanes(event),
        workloads={},
    )


def _lanes(event: journal.Event) -> dict[str, LaneRecord]:
    """Create empty records of the lanes of a plan."""
    lanes = [Lane(**{**lane, "batch_sizes": tuple(lane["batch_sizes"])}) for lane in event["lanes"]]
    return {lane.id: LaneRecord(lane) for lane in lanes}


def _record_opened(record: StudyRecord, event: journal.Event) -> None:
    record.recorded = Place(event["experiment_id"], event["run_id"])


def _lane_recorded(record: StudyRecord, event: journal.Event) -> None:
    lane = record.lanes[event["lane"]]
    lane.runs = (*(run for run in lane.runs if run != event["run_id"]), event["run_id"])
    lane.models = event.get("models", {})


def _study_finished(record: StudyRecord, event: journal.Event) -> None:
    record.finished_at = event["at"]


def _session_started(record: StudyRecord, event: journal.Event) -> None:
    record.finished_at = None
    record.sessions += 1
    record.variables = event.get("variables", {})
    # Other processors or adapter flags make other lanes of the same study. They are compared with the baseline of their
    # own session, which comes before that of an earlier one.
    record.lanes = {**_lanes(event), **record.lanes}


def _workload_prepared(record: StudyRecord, event: journal.Event) -> None:
    record.workloads[event["workload"]] = event["materials"]


def _engine_built(record: StudyRecord, event: journal.Event) -> None:
    engine = EngineRecord.model_validate(event)
    lane = record.lanes[engine.lane]
    lane.engines = [*(old for old in lane.engines if old.id != engine.id), engine]


def _engine_unexplained(record: StudyRecord, event: journal.Event) -> None:
    record.lanes[event["lane"]].unexplained = event["reason"]


def _lane_started(record: StudyRecord, event: journal.Event) -> None:
    lane = record.lanes[event["lane"]]
    lane.started_at = lane.started_at or event["at"]


def _lane_finished(record: StudyRecord, event: journal.Event) -> None:
    lane = record.lanes[event["lane"]]
    lane.finished_at = event["at"]
    lane.overhead_s = event["overhead_s"]


def _arrivals(record: StudyRecord, event: journal.Event) -> None:
    kept = {name: value for name, value in event.items() if name not in _ENVELOPE}
    record.lanes[event["lane"]].cells[event["batch"]].arrivals.append(kept)


def _arrivals_ended(record: StudyRecord, event: journal.Event) -> None:
    record.lanes[event["lane"]].cells[event["batch"]].arrivals_note = event["reason"]


def _left_out(record: StudyRecord, event: journal.Event) -> None:
    if event["batch"] in record.lanes[event["lane"]].cells:
        return  # it was measured before, and only not any further
    record.left_out[event["cell"]] = {name: event[name] for name in ("lane", "batch", "reason", "final")}


def _race_ended(record: StudyRecord, event: journal.Event) -> None:
    record.races[event["workload"]] = {name: value for name, value in event.items() if name not in ("event", "at")}


_RECORDED = {
    "record_opened": _record_opened,
    "lane_opened": _lane_recorded,
    "lane_recorded": _lane_recorded,
    "study_finished": _study_finished,
    "session_started": _session_started,
    "workload_prepared": _workload_prepared,
    "engine_built": _engine_built,
    "engine_unexplained": _engine_unexplained,
    "lane_started": _lane_started,
    "lane_finished": _lane_finished,
    "arrivals": _arrivals,
    "arrivals_ended": _arrivals_ended,
    "left_out": _left_out,
    "race_ended": _race_ended,
}

_OF_CELLS = ("cell_verified", "cell_ready", "slice", "lane_left", "cell_finished")

_ENVELOPE = ("event", "at", "cell", "lane", "batch")
"""Fields shared by events of a cell."""


def _figures(ready: journal.Event) -> tuple[str, ...]:
    """Fields of a loaded engine that are figures; not its times where the process stood still in each attempt."""
    return ("requests",) if len(ready.get("stopped_s", ())) >= AGAIN else ("load_s", "first_inference_s", "requests")


class _Cells:
    """Collects the events of cells between ``cell_ready`` and ``cell_finished``."""

    def __init__(self) -> None:
        self._verified: dict[str, journal.Event] = {}
        self._ready: dict[str, journal.Event] = {}
        self._slices: dict[str, list[dict[str, Any]]] = {}
        self._left: dict[str, journal.Event] = {}
        self._continued: set[str] = set()
        """Cells that were loaded again and keep their slices."""
        self.companions: dict[str, list[dict[str, Any]]] = {}
        """Slices of a cell that others are compared with but that do not count for itself: taken as a companion or in
        an earlier session."""

    def apply(self, record: StudyRecord, event: journal.Event) -> None:
        cell = event["cell"]
        if event["event"] == "cell_verified":
            self._verified[cell] = event
        elif event["event"] == "cell_ready":
            self._ready[cell] = event
            self._begin(record, event)
        elif event["event"] == "lane_left":
            self._left[cell] = event
        elif event["event"] == "slice":
            kept = {
                name: value for name, value in event.items() if name not in ("event", "at", "cell", "lane", "companion")
            }
            where = self.companions.setdefault(cell, []) if event["companion"] else self._slices[cell]
            where.append(kept)
        else:
            self._finish(record, event)

    def _begin(self, record: StudyRecord, event: journal.Event) -> None:
        """Start a cell anew, or continue it behind its slices."""
        cell = event["cell"]
        record.left_out.pop(cell, None)
        if not event.get("continued"):
            self._slices[cell] = []
            self._continued.discard(cell)
        elif cell not in self._slices:
            done = record.lanes[event["lane"]].cells.get(event["batch"])
            self._slices[cell] = list(done.samples) if done is not None else []
            self._continued.add(cell)

    def _finish(self, record: StudyRecord, event: journal.Event) -> None:
        cell, batch = event["cell"], event["batch"]
        cells = record.lanes[event["lane"]].cells
        record.left_out.pop(cell, None)
        gone = self._left.pop(cell, {})
        variables = dict(record.variables)
        if cell in self._continued:
            self._continued.discard(cell)
            variables = {**(cells[batch].variables if batch in cells else {}), **variables}
        elif batch in cells:
            self.companions.setdefault(cell, []).extend(cells[batch].samples)
        ready = self._ready.pop(cell, {})
        verified = {name: value for name, value in self._verified.pop(cell, {}).items() if name not in _ENVELOPE}
        parities = [Parity(**part["parity"]) for part in (verified, ready) if part.get("parity")]
        cells[batch] = CellRecord(
            id=cell,
            lane=event["lane"],
            batch=batch,
            verdict=Verdict(event["verdict"]),
            reason=event["reason"],
            noise=event["noise"],
            variables=variables,
            stderr_tail=event["stderr_tail"],
            engine=ready.get("engine") or event.get("engine"),
            precision_in_force=ready.get("precision"),
            flags=ready.get("flags", {}),
            parity=reduce(worse, parities) if parities else None,
            verified=verified,
            finished_at=event["at"],
            ready={name: ready[name] for name in _figures(ready) if name in ready},
            warm_up=event.get("warm_up") or {},
            samples=self._slices.pop(cell, []),
            left={
                name: gone[name] for name in ("round", "rounds", "rival", "shared", "ratio", "bound", "limit") if gone
            },
        )
