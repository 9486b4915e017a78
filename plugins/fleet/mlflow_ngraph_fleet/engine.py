"""Interface of an engine that takes jobs to devices: submit, wait, logs, cancel, recover.

The shape is that of MLflow's own job executors. An engine queues and carries; which job measures is decided by the lock of
the device, because what an engine calls a resource binds only those who ask for it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_POLL_S = 1.0


class State(str, Enum):
    """State of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The engine knows nothing of it (any more)."""

    @property
    def ended(self) -> bool:
        """True where it will not change again."""
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class Status:
    """Status of a job, by its engine."""

    state: State
    message: str = ""
    """Reason for its failure or its waiting."""
    exit_code: int | None = None
    """Exit code of the job's process; None where it has none, or the engine does not know it."""


@dataclass(frozen=True)
class Job:
    """One study on one device."""

    id: str
    """Chosen by the submitter, so that submitting it again is noticed."""
    device: str
    command: str
    """A line of the shell, run in a directory with the ``files``."""
    files: Path
    """A small directory that goes to the device."""
    parts: Mapping[str, Path] = field(default_factory=dict)
    """Directories that need to go there only once, by names that hold their digests."""


@dataclass(frozen=True)
class KnownJob:
    """A job that the engine lists."""

    id: str
    device: str
    state: State


class Engine(ABC):
    """Takes jobs to the devices of a fleet. As a context manager it closes its connections."""

    name: str

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close connections. Jobs go on."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Queue a job. One with an id that was submitted before is left as it is.

        Raises
        ------
        FleetError
            The engine refuses it.
        FleetAwayError
            The engine does not answer.
        """

    @abstractmethod
    def status(self, job_id: str) -> Status:
        """Status of a job.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """

    @abstractmethod
    def logs(self, job_id: str) -> str:
        """Everything that a job has printed so far; empty while it is queued, or where its device is away.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Ask a job to end: with SIGTERM, and by force where that does not help. One that has ended is left as it is.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """

    @abstractmethod
    def recover(self) -> list[KnownJob]:
        """All jobs that the engine knows, of all submitters.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """

    @abstractmethod
    def nodes(self) -> Mapping[str, str]:
        """Status of each device in a word or two, by name: those that have joined.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """

    def wait(self, job_id: str, seconds: float) -> Status:
        """Wait for the end of a job; returns its status then, or when the time is over.

        Raises
        ------
        FleetAwayError
            The engine does not answer.
        """
        deadline = time.monotonic() + seconds
        while not (status := self.status(job_id)).state.ended and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
        return status
