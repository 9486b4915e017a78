"""run_study: plan, measure and record a study."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.devices import registry as devices
from mlflow_ngraph.devices.fingerprint import fingerprint, versions
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.errors import DiskFullError, StudyError, WorkloadError
from mlflow_ngraph.execute import known_workloads, study_directories, worker
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.journal import SCHEMA_VERSION, Event, Journal, Reader
from mlflow_ngraph.execute.machine_lock import ExclusiveMachine, Holder, WhenBusy
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan, make
from mlflow_ngraph.execute.process_pool import most_bytes
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.execute.replay import Fold
from mlflow_ngraph.execute.supervisor import Supervisor
from mlflow_ngraph.execute.timing_history import TimingHistory, learn
from mlflow_ngraph.processes import disk_space, environment, fork_server, interruption
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.processes.time_budget import TimeBudget
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.recording import from_journal
from mlflow_ngraph.recording.outcome import Outcome
from mlflow_ngraph.recording.recorder_process import RecorderProcess
from mlflow_ngraph.study import Study
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.shared_engines import ServerEngines
from mlflow_ngraph.workloads.registry import create

Resume = Literal["auto", "always", "never"]

CHECK_SECONDS = 600.0
LARGE_BYTES = 2 << 30
"""Size from which the space needs of a study are announced."""
RECORDING_LANE_SECONDS, RECORDING_SECONDS = 0.7, 3.0
"""Seconds for recording a lane, and the study, at the end: reserved from the study's time."""

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives the events of a running study."""

    def on_event(self, event: Event) -> None:
        """Called with every event after it is on disk. Must return quickly: the measurement waits for it."""


def plan_study(study: Study, home: Path | None = None) -> StudyPlan:
    """Plan a study on this machine. A child process checks models that are not in a catalogue.

    Parameters
    ----------
    home : Path | None
        Directory of studies, for the expected durations; see `home_directory.location`.

    Raises
    ------
    UsageError
        The study cannot run here; gives the reason.
    """
    plan = make(study, devices.create(study.device), timing_history(home))
    workloads = [create(workload.ref, study.init) for workload in plan.workloads if workload.known is None]
    checked = {
        str(workload.ref): answer for workload in workloads if (answer := known_workloads.recall(workload)) is not None
    }
    unknown = [workload for workload in workloads if str(workload.ref) not in checked]
    if unknown:
        refs = [asdict(workload.ref) for workload in unknown]
        answers = ask_child("check", workloads=refs, init=asdict(study.init))
        for workload, answer in zip(unknown, answers, strict=True):
            if "refused" not in answer:
                known_workloads.keep(workload, answer)
            checked[str(workload.ref)] = answer
    return plan.with_checked(checked)


def timing_history(home: Path | None = None) -> TimingHistory:
    """Durations of earlier studies on this machine, in ``home`` as `home_directory.location` reads it."""
    place = home_directory.location(home)
    known = learn(place)
    for spec in (engine.spec for engine in EngineStore(home_directory.engine_store(place)).entries()):
        known.kept(spec.workload, spec.compiler, spec.target.precision)
    return known


def ask_child(command: str, **fields: Any) -> Any:
    """Run one command in a short-lived child process, which may import torch.

    Raises `WorkloadError` with the child's message if the command fails.
    """
    env = environment.of_threads(None, patient=True, logins=True)
    with closing(Warden()) as warden, closing(Child(worker.__name__, env, warden=warden, forked=True)) as child:
        try:
            return child.request(command, CHECK_SECONDS, **fields)
        except ChildFailure as failure:
            raise WorkloadError(failure.reason) from None


@fork_server.shared()
def run_study(
    study: Study,
    *,
    resume: Resume = "auto",
    home: Path | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    offline: bool = False,
    observer: Observer | None = None,
    when_busy: WhenBusy = "wait",
    standstill: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Outcome:
    """Compile, verify, measure and record a study on this machine.

    Parameters
    ----------
    resume : Resume
        ``auto`` continues the newest study of the same content on this machine if it was interrupted, else starts anew.
        ``always`` continues the newest one even if it finished, and repeats noisy, crashed, timed-out and out-of-memory
        cells. ``never`` starts anew.
    home : Path | None
        Directory of studies; see `home_directory.directory`.
    tracking_uri, experiment : str | None
        Destination of the recording; None is MLflow's default.
    offline : bool
        Measure only; `sync_study` records later.
    observer : Observer | None
        Receives every event.
    when_busy : WhenBusy
        ``wait`` for another study on this machine, or ``refuse``.
    standstill : Callable[[], AbstractContextManager[None]]
        Entered around each slice: suspends processes that would disturb it and may pause for some seconds.

    Raises
    ------
    UsageError
        The request was wrong; nothing was written.
    DeviceBusyError
        Another study is measuring, and ``when_busy`` is ``refuse``; nothing was written.
    interruption.Interrupted
        The process was asked to end; the study can be resumed, and its run is KILLED.
    """
    budget = TimeBudget(study.within)
    plan, machine = _planned(study, home, observer), fingerprint()
    root, key = home_directory.directory(home), study_directories.study_key(study, plan.device, machine["digest"])
    newest = partial(study_directories.newest, root, key, machine["digest"])
    _resumable(study, resume, root, key, newest())  # complains before anybody waits
    with ExitStack() as stack:
        recorder = None if offline else RecorderProcess(tracking_uri, experiment)
        if recorder is not None:
            stack.callback(recorder.end)
            if away := recorder.preflight():
                # The user can still correct the address.
                _announce(observer, "server_away", f"measuring all the same, and keeping it here: {away}", reason=away)
        signals = stack.enter_context(interruption.listening(partial(_announce_end, observer)))
        if (ended := _finish_recording(newest(), recorder, resume, observer)) is not None:
            return ended
        asked = time.monotonic()
        lock = stack.enter_context(ExclusiveMachine(study.name, when_busy, partial(_announce_holder, observer)))
        budget.waited(time.monotonic() - asked)
        # The previous holder of the machine may have run this very study.
        if (ended := _finish_recording(newest(), recorder, resume, observer)) is not None:
            return ended
        continued = _resumable(study, resume, root, key, newest())
        directory = continued or _room_for(plan, root, key, None if offline else connection.resolve_uri(tracking_uri))
        writer = stack.enter_context(Journal(directory, observer.on_event if observer else lambda event: None))
        if continued is None:
            _start(writer, directory, plan, machine)
        reader, state = Reader(directory), Fold()
        state.catch_up(reader)
        before = state.record.snapshot()
        session = before.sessions + 1
        if recorder is not None:
            recorder.follow(directory, writer, reader.lines)
            recorder.open()
            budget.reserve(RECORDING_SECONDS + RECORDING_LANE_SECONDS * len(plan.workloads[-1].lanes))
        shared = (
            ServerEngines(connection.resolve_uri(tracking_uri), root)
            if study.cache == "server" and not offline
            else None
        )
        supervisor = Supervisor(
            plan,
            study_directories.StudyPaths(directory),
            writer,
            session=session,
            cache=_engine_cache(study, root, shared, writer, before),
            before=before,
            retry=resume == "always",
            on_workload=lambda workload: _pass_on(workload, None if signals.asked else recorder),
            undisturbed=nullcontext if recorder is None else recorder.paused,
            standstill=standstill,
            time=budget,
        )
        writer.append(
            "session_started",
            session=session,
            study_id=before.id,
            name=study.name,
            lanes=[asdict(lane) for lane in plan.lanes],
            cells=plan.cells,
            done=plan.cells - supervisor.remaining(),
            variables=environment.recorded_variables(),
        )
        finished = False
        try:
            try:
                supervisor.run()
                # Written before the lock is released: a waiting process then sees that the study is finished. An
                # interruption from here on finds it complete.
                with interruption.deferred():
                    writer.append("study_finished", status="FINISHED", offline=offline)
                    finished = True
            finally:
                lock.release()  # recording what is left disturbs nobody
        except BaseException as error:
            _note_interruption(writer, error, directory if finished else None)
            _record_what_is_known(recorder, signals, "FINISHED" if finished else _status_after(error))
            raise
        return _outcome(directory, recorder, reader, state)


def _finish_recording(
    directory: Path | None, recorder: RecorderProcess | None, resume: Resume, observer: Observer | None
) -> Outcome | None:
    """Record the newest study of this content if only its recording is missing; else None."""
    if recorder is None or resume != "auto" or directory is None:
        return None
    if study_directories.end(directory) != "measured":
        return None
    tell = observer.on_event if observer else lambda event: None
    reason = from_journal.busy(directory)
    wait = partial(_announce, observer, "journal_busy", f"waiting: {reason}", reason=reason)
    with Journal(directory, tell, wait) as writer:
        if study_directories.end(directory) != "measured":
            return None  # by whoever was waited for
        writer.tell("recording_resumed", directory=str(directory))
        recorder.follow(directory, writer)
        recorder.resync()
        return _outcome(directory, recorder, Reader(directory), Fold())


def _note_interruption(writer: Journal, error: BaseException, measured: Path | None) -> None:
    """Write an interruption to the journal. If the study is ``measured`` completely, only the error says so."""
    if measured is not None:
        if isinstance(error, interruption.Interrupted):
            error.measured = measured
        return
    with suppress(DiskFullError):  # the error that is told may be just that
        writer.append("study_interrupted", reason=type(error).__name__)


def _record_what_is_known(recorder: RecorderProcess | None, signals: interruption.Interruption, status: str) -> None:
    """Record before an error is passed on, unless Ctrl-C was pressed twice."""
    if recorder is not None and not signals.hurried:
        signals.tidied()
        recorder.close(status)


def _status_after(error: BaseException) -> str:
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"


def _outcome(directory: Path, recorder: RecorderProcess | None, reader: Reader, state: Fold) -> Outcome:
    if recorder is not None:
        try:
            recorder.close("FINISHED")
        except interruption.Interrupted as error:
            error.measured = directory
            raise
    state.catch_up(reader)  # the recorder notes which runs it made
    record = state.derived()
    if recorder is None:
        return Outcome(record, directory)
    return Outcome(record, directory, recorder.where, recorder.problem)


def _pass_on(workload: WorkloadPlan, recorder: RecorderProcess | None) -> None:
    if recorder is not None:
        recorder.workload(str(workload.ref), [lane.id for lane in workload.lanes])


def _planned(study: Study, home: Path | None, observer: Observer | None) -> StudyPlan:
    """Plan the study and report refused workloads and large sizes, while the user can still stop and correct them."""
    plan = plan_study(study, home)
    if observer is not None and plan.of_known_size.home_bytes > LARGE_BYTES:
        sizes = {"home_bytes": plan.home_bytes, "artifact_bytes": plan.engine_bytes, "memory_bytes": most_bytes(plan)}
        _announce(observer, "study_is_large", "", **sizes)
    for workload in plan.workloads:
        if workload.refused:
            warning = f"{workload.label} fails, the others are measured: {workload.refused}"
            _announce(observer, "workload_refused", warning, label=workload.label, reason=workload.refused)
    return plan


def _announce(observer: Observer | None, event: str, warning: str, **fields: Any) -> None:
    """Pass an event to the observer without writing it; log a warning when there is none."""
    if observer is None:
        _log.warning("%s", warning)
    else:
        observer.on_event({"event": event, "at": time.time(), **fields})


def _announce_holder(observer: Observer | None, holder: Holder | None) -> None:
    who = str(holder or "somebody who does not say who it is")
    _announce(observer, "machine_busy", f"waiting: this machine is measuring {who}", holder=who)


def _announce_end(observer: Observer | None, after: bool) -> None:
    """Report the first signal. The journal has the end of the study."""
    if observer is not None:
        _announce(observer, "interrupted", "", after=after)


def _engine_cache(
    study: Study, root: Path, shared: ServerEngines | None, journal: Journal, record: StudyRecord
) -> EngineCache | None:
    if study.cache == "off":
        return None
    return EngineCache(journal, record, EngineStore(home_directory.engine_store(root)), shared)


def _resumable(study: Study, resume: Resume, root: Path, key: str, newest: Path | None) -> Path | None:
    """The study directory to continue, or None to start anew."""
    if resume == "never":
        return None
    if resume == "always" and newest is None:
        imported = study_directories.imported(root, key)
        raise StudyError(
            f"study {study.name!r} has nothing to resume in {root}: it never ran here with this content"
            + (f" ({imported}: what was imported is not gone on with)" if imported else "")
            + "; leave out --resume to start it"
        )
    if newest is not None and resume == "auto" and study_directories.end(newest) != "open":
        return None
    return newest


def _room_for(plan: StudyPlan, root: Path, key: str, tracking_uri: str | None) -> Path:
    """Create a directory for a study on a disk with enough space for its known needs, else raise `DiskFullError`."""
    known = plan.of_known_size
    # Without a server MLflow keeps artifacts below the current directory.
    local = tracking_uri is not None and not connection.is_server(tracking_uri)
    beside = local and Path.cwd().stat().st_dev == root.stat().st_dev
    disk_space.require(known.home_bytes + (known.engine_bytes if beside else 0), root)
    return study_directories.new_directory(root, plan.study, key)


def _start(journal: Journal, directory: Path, plan: StudyPlan, machine: Mapping[str, Any]) -> None:
    (directory / home_directory.STUDY_FILE).write_text(plan.study.to_yaml(), encoding="utf-8")
    (directory / home_directory.STARTED_IN).write_text(str(Path.cwd()), encoding="utf-8")
    journal.append(
        "study_started",
        schema_version=SCHEMA_VERSION,
        study_id=directory.name,
        study=plan.study.model_dump(mode="json"),
        device=plan.device,
        fingerprint=machine,
        versions={**versions(), **_compiler_versions(plan)},
        lanes=[asdict(lane) for lane in plan.lanes],
        notes=list(plan.notes),
    )


def _compiler_versions(plan: StudyPlan) -> dict[str, str]:
    names = {lane.compiler for lane in plan.lanes}
    return {name: COMPILERS.get(name).availability().version or "" for name in sorted(names)}
