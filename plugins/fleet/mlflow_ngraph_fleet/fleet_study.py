"""FleetStudy: submits a study's jobs to devices, follows, resubmits and cancels them, records journals they send.

What is known of it is kept in a directory, so that any later client can go on; what happened on the devices is known from the
engine and from the logs of the jobs alone.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mlflow_ngraph.errors import FleetAwayError, FleetError, NGraphError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph_fleet.engine import Engine, Job, State, Status
from mlflow_ngraph_fleet.fleet_plan import read, write
from mlflow_ngraph_fleet.fleet_run import FleetRun
from mlflow_ngraph_fleet.wire import Event, Listener

ATTEMPTS = 5
"""Attempts to continue a study on a device whose job ended without a word."""
_POLL_S = 1.5
_CANCEL_S = 120.0
"""Time for cancelled jobs to end."""
_OWN_CODES = (0, 1, 2, 3, 130, 143)
"""Exit codes of a study; that of a process that was killed is another one."""
_LAST_LINES = 12
"""Lines of a log that are shown with a failure."""
_OF_DEVICES = "ngraph"


class Observer(Protocol):
    """Callbacks of a study on several devices."""

    def on_state(self, device: str, state: str) -> None:
        """Called when the state of a device's job changes."""

    def on_event(self, device: str, event: Event) -> None:
        """Called with a message of the study on a device."""


@dataclass
class Progress:
    """Progress of a device."""

    device: str
    attempt: int = 1
    listener: Listener = field(default_factory=Listener)
    state: str = ""
    """State in the observer's words."""
    code: int | None = None
    """The exit code of the study there; None as long as it is under way."""
    reason: str = ""
    study_id: str = ""
    last_lines: list[str] = field(default_factory=list)
    submitted: bool = False


@dataclass(frozen=True)
class DeviceOutcome:
    """Result of the study on a device."""

    device: str
    code: int
    reason: str
    study_id: str
    last_lines: tuple[str, ...]


class FleetStudy:
    """A study on its way over the devices of a fleet.

    Parameters
    ----------
    place : Path
        Directory of the study's record; made by `fleet_plan.plan`.
    """

    def __init__(self, engine: Engine, place: Path, run: FleetRun, observer: Observer) -> None:
        kept = read(place)
        self.id: str = kept["id"]
        self.run = run
        self._engine = engine
        self._place = place
        self._observer = observer
        self._devices = {name: Progress(name, attempt=attempt) for name, attempt in kept["devices"].items()}
        self._commands: Mapping[str, str] = kept["commands"]
        self._parts: Mapping[str, str] = kept["parts"]
        self._cancelled: bool = kept["cancelled"]

    def submit(self) -> None:
        """Submit jobs that are not queued yet.

        Raises
        ------
        FleetError
            The engine refuses a job; none of them goes on.
        """
        try:
            for progress in self._devices.values():
                self._submit(progress)
        except FleetError:
            for progress in self._devices.values():
                if progress.submitted:
                    with suppress(FleetError):
                        self._engine.cancel(self._job_id(progress))
            raise

    def follow(self) -> list[DeviceOutcome]:
        """Follow the jobs until every device has ended.

        Returns
        -------
        list[DeviceOutcome]
            One a device, in the order of the fleet.

        Raises
        ------
        FleetError
            The engine refuses, or a device's message is damaged.
        """
        while open_ones := [progress for progress in self._devices.values() if progress.code is None]:
            for progress in open_ones:
                try:
                    self._look(progress)
                except FleetAwayError as error:
                    self._show(progress, f"the engine is away: {error}")
            if any(progress.code is None for progress in open_ones):
                time.sleep(_POLL_S)
        return self.outcomes()

    def cancel(self) -> list[DeviceOutcome]:
        """End the study everywhere, and wait until it has ended.

        Returns
        -------
        list[DeviceOutcome]
            As of `follow`; a device that did not answer in time has a reason.
        """
        self._cancelled = True
        self._keep()
        for progress in self._devices.values():
            if progress.code is None:
                with suppress(FleetAwayError):
                    self._engine.cancel(self._job_id(progress))
                    self._show(progress, "ending")
        deadline = time.monotonic() + _CANCEL_S
        while time.monotonic() < deadline:
            still = [progress for progress in self._devices.values() if progress.code is None]
            for progress in still:
                with suppress(FleetAwayError):
                    self._look(progress)
            if all(progress.code is not None for progress in still):
                break
            time.sleep(_POLL_S / 3)
        for progress in self._devices.values():
            if progress.code is None:
                progress.code, progress.reason = 1, "did not say that it ended; see mlflow-ngraph fleet status"
        return self.outcomes()

    def outcomes(self) -> list[DeviceOutcome]:
        return [
            DeviceOutcome(each.device, each.code, each.reason, each.study_id, tuple(each.last_lines))
            for each in self._devices.values()
            if each.code is not None
        ]

    def _submit(self, progress: Progress) -> None:
        files = self._place / "jobs" / progress.device
        parts = {name: Path(path) for name, path in self._parts.items()}
        job = Job(self._job_id(progress), progress.device, self._commands[progress.device], files, parts)
        self._engine.submit(job)
        progress.submitted = True
        self._keep()

    def _look(self, progress: Progress) -> None:
        """Read new messages of a device."""
        job_id = self._job_id(progress)
        status = self._engine.status(job_id)
        if status.state is not State.QUEUED:
            # After the status: a job that has ended says nothing more.
            self._hear(progress, self._engine.logs(job_id))
        if progress.code is not None:
            self._collect(progress)
            self._show(progress, "ended")
        elif status.state.ended:
            self._ended_silently(progress, status)
        else:
            self._show(progress, f"{status.state.value}{f': {status.message}' if status.state is State.QUEUED else ''}")

    def _hear(self, progress: Progress, log: str) -> None:
        for said in progress.listener.hear(log):
            if isinstance(said, str):
                progress.last_lines = [*progress.last_lines, said][-_LAST_LINES:]
                continue
            if said["event"] == "session_started":
                progress.study_id = str(said.get("study_id", ""))
            if said["event"] == "ended":
                progress.code, progress.reason = int(said["code"]), str(said.get("reason", ""))
                progress.study_id = str(said.get("study_id") or progress.study_id)
            self._observer.on_event(progress.device, said)

    def _ended_silently(self, progress: Progress, status: Status) -> None:
        """Handle a job that ended without a message of the study: it, the node or the head was killed, or it was cancelled."""
        message = status.message or status.state.value
        if status.exit_code is not None and status.exit_code in _OWN_CODES:
            progress.code = status.exit_code
            progress.reason = f"ended with {status.exit_code}, and its log is not to be had: see the device"
        elif self._cancelled or status.state is State.CANCELLED:
            progress.code, progress.reason = (
                130,
                "ended before it began" if self._cancelled else "somebody ended its job",
            )
        elif progress.attempt >= ATTEMPTS:
            progress.code, progress.reason = 1, f"lost {ATTEMPTS} times: {message}"
        else:
            progress.attempt += 1
            progress.listener, progress.last_lines = Listener(), []
            self._show(progress, f"lost ({message}); taking it there again, where it goes on")
            self._submit(progress)
            return
        self._show(progress, "ended")

    def _collect(self, progress: Progress) -> None:
        """Record a study that its device could not record."""
        content = progress.listener.journal
        if content is None or not progress.study_id:
            return
        directory = self._place / "collected" / Path(progress.study_id).name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / journal.FILE_NAME).write_bytes(content)
        self._show(progress, "recording from here")
        try:
            with _within(self.run.run_id):
                outcome = sync_study(directory, tracking_uri=self.run.tracking_uri)
        except NGraphError as error:
            progress.code = 1
            progress.reason = f"not recorded: {error}; later: mlflow-ngraph study sync {shlex.quote(str(directory))}"
            return
        if progress.code in (0, 1, 3):
            progress.code = outcome.exit_code

    def _show(self, progress: Progress, state: str) -> None:
        if state != progress.state:
            progress.state = state
            self._observer.on_state(progress.device, state)

    def _job_id(self, progress: Progress) -> str:
        return job_id(self.id, progress.device, progress.attempt)

    def _keep(self) -> None:
        kept = read(self._place)
        kept["devices"] = {name: progress.attempt for name, progress in self._devices.items()}
        write(self._place, {**kept, "cancelled": self._cancelled})


def job_id(fleet_study: str, device: str, attempt: int) -> str:
    """Id of a device's job in the engine.

    Parameters
    ----------
    fleet_study, device : str
        The id of the study over all devices, and the name of the device.
    attempt : int
        Number of the job, from 1 on.
    """
    return f"{_OF_DEVICES}-{fleet_study}-{device}-{attempt}"


@contextmanager
def _within(run_id: str) -> Iterator[None]:
    """Record into a run within the block."""
    before = os.environ.get("MLFLOW_RUN_ID")
    os.environ["MLFLOW_RUN_ID"] = run_id
    try:
        yield
    finally:
        if before is None:
            del os.environ["MLFLOW_RUN_ID"]
        else:
            os.environ["MLFLOW_RUN_ID"] = before


def exit_code(outcomes: Sequence[DeviceOutcome]) -> int:
    """Exit code for all devices: that of an interruption, else the worst."""
    codes = {outcome.code for outcome in outcomes}
    interrupted = [code for code in codes if code >= 128]
    if interrupted:
        return max(interrupted)
    return next((code for code in (2, 1, 3) if code in codes), 0)


def status_of(outcomes: Sequence[DeviceOutcome]) -> str:
    """Status of such a study in MLflow."""
    code = exit_code(outcomes)
    return "KILLED" if code >= 128 else "FINISHED" if code in (0, 3) else "FAILED"
