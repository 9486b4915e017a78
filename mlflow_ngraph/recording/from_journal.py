"""sync_study: record a study from its journal after it was measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.errors import UnreachableError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.recording.study_upload import record_lane
from mlflow_ngraph.tracking.recorder import Recorder

_log = logging.getLogger(__name__)


def sync_study(
    directory: Path,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    on_wait: Callable[[], None] | None = None,
    on_pause: Callable[[str, float], None] | None = None,
) -> Outcome:
    """Record a study that was measured without a tracking server, or whose recording broke off.

    A server that goes away is waited for. Nothing is recorded twice.

    Parameters
    ----------
    on_wait : Callable[[], None] | None
        Called before waiting for another process that runs or records the study; by default logs it.
    on_pause : Callable[[str, float], None] | None
        Called before waiting for the server, with the error and the seconds; by default logs them.

    Raises
    ------
    JournalError
        There is no study in ``directory``, or its journal is damaged or not writable.
    TrackingError
        The server refuses; as `UnreachableError`, it cannot be reached or was away for half a minute.
    """
    journal.first(directory)  # complains where there is no study, before anything is made there
    recorder = Recorder(tracking_uri, experiment, patient=True)
    recorder.reach()
    with ExitStack() as stack:
        writer = stack.enter_context(Journal(directory, on_wait=on_wait or partial(_say_who_records, directory)))
        stack.callback(recorder.rest)
        record = replay.load(directory)
        take = partial(_repeat, recorder, on_pause=on_pause or _say_why_it_pauses)
        take(partial(recorder.open, record, directory))
        if recorder.place != record.recorded:
            writer.append("record_opened", **asdict(recorder.place))
        for lane in record.lanes.values():
            if lane.cells:
                take(partial(record_lane, recorder, record, lane.lane.id, writer.append))
        finished = record.finished_at is not None
        run_id = take(partial(recorder.close, record, "FINISHED" if finished else "KILLED", answers(record)))
        writer.append("study_recorded", run_id=run_id)
    return Outcome(record, directory, recorder.where(), notes=(*_cut(record, directory), *recorder.notes))


def _cut(record: StudyRecord, directory: Path) -> Iterator[str]:
    """Say that a journal ends before its study does."""
    if record.finished_at is None:
        lanes = record.lanes.values()
        done, asked = sum(len(lane.cells) for lane in lanes), sum(len(lane.lane.batch_sizes) for lane in lanes)
        yield (
            f"the journal of {directory.name} ends before its study does, with {done} of {asked} cells: go on with "
            "--resume, or restore the file if it was cut"
        )


def busy(directory: Path) -> str:
    """Reason for waiting for the journal of a study."""
    return f"another process is running or recording {directory.name}"


def _say_who_records(directory: Path) -> None:
    _log.warning("waiting: %s", busy(directory))


def _say_why_it_pauses(problem: str, seconds: float) -> None:
    _log.warning("waiting: %s; trying again in %.0f s", problem, seconds)


T = TypeVar("T")

_TIMES = 6
LONGEST_PAUSE_S = 15.0
"""Pauses of 1, 2, 4, 8 and 15 seconds: a server restarts within half a minute."""


def _repeat(recorder: Recorder, step: Callable[[], T], on_pause: Callable[[str, float], None]) -> T:
    """Repeat an idempotent step of a recorder until the server completes it, or has been away each time.

    The server is reached before each further attempt: a whole step would wait for minutes.
    """

    def take() -> T:
        if attempts.statistics["attempt_number"] > 1:
            recorder.reach()
        return step()

    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        on_pause(str(state.outcome.exception()), state.next_action.sleep)

    attempts = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after_attempt(_TIMES),
        wait=wait_exponential(max=LONGEST_PAUSE_S),
        before_sleep=tell,
        reraise=True,
    )
    return attempts(take)
