"""Recording a study after it was measured, from its journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.recording.retries import persistently
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

    A server that answered at first and then is away for a while is waited for; nothing is recorded twice.

    Parameters
    ----------
    on_wait : Callable[[], None] | None
        Called before waiting for another process that runs or records the same study; by default that is logged.
    on_pause : Callable[[str, float], None] | None
        Called before waiting for a server that went away, with what went wrong and for how many seconds; by
        default that is logged.

    Raises
    ------
    JournalError
        There is no study in ``directory``, or its journal is damaged or cannot be written.
    TrackingError
        The server refuses, or as `UnreachableError` cannot be reached, or went away and did not come back in half a minute.
    """
    journal.first(directory)  # complains where there is no study, before anything is made there
    recorder = Recorder(tracking_uri, experiment, patient=True)
    recorder.preflight()
    with ExitStack() as stack:
        writer = stack.enter_context(Journal(directory, on_wait=on_wait or partial(_say_who_records, directory)))
        stack.callback(recorder.rest)
        record = replay.load(directory)
        take = partial(persistently, recorder, on_pause=on_pause or _say_why_it_pauses)
        take(partial(recorder.open, record, directory))
        for lane in record.lanes.values():
            if lane.cells:
                take(partial(recorder.record_lane, record, lane.lane.id))
        finished = record.finished_at is not None
        run_id = take(partial(recorder.close, record, "FINISHED" if finished else "KILLED", answers(record)))
        writer.append("study_recorded", run_id=run_id)
    return Outcome(record, directory, recorder.where())


def busy(directory: Path) -> str:
    """Why the journal of a study is waited for."""
    return f"another process is running or recording {directory.name}"


def _say_who_records(directory: Path) -> None:
    """Before waiting for another process that has the journal."""
    _log.warning("waiting: %s", busy(directory))


def _say_why_it_pauses(problem: str, seconds: float) -> None:
    """Before waiting for a server that went away."""
    _log.warning("waiting: %s; trying again in %.0f s", problem, seconds)
