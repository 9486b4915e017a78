"""LaneProcess: starts and ends the child of a lane; its imports are done before anything is timed."""

from __future__ import annotations

from typing import Any, Literal

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.execute import worker
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child, ChildFailure

Purpose = Literal["build", "verify", "run"]

TIMED_START_ALONE = True
"""Measuring processes are not forked: a fork shares memory, and its waiting threads would sleep."""


class LaneProcess:
    """Holds at most one child at a time, which imports its runtime first.

    The journal records the lifetime and CPU time of children that do not measure.
    """

    def __init__(self, session: Session, lane: Lane, compiler: Compiler[Any]) -> None:
        self.overhead_s = 0.0
        """Sum over ended children; see `Child.overhead_s`."""
        self._session = session
        self._lane = lane
        self._compiler = compiler
        self._child: Child | None = None
        self._purpose: Purpose = "run"
        self._children = 0
        """Number of compiling children so far."""

    def start(self, purpose: Purpose) -> Child:
        """Return the child without waiting for it; start one if needed."""
        if self._child is None:
            self._child, self._purpose = self._spawn(purpose), purpose
        return self._child

    def ready(self, purpose: Purpose) -> Child:
        """Return the child once its imports are done, so that no timed stage contains them.

        Raises `ChildFailure` if an import failed.
        """
        child = self.start(purpose)
        child.finish()
        return child

    def settle(self) -> None:
        """Wait for the imports of the child, if there is one.

        A child that fails is ended. Its successor reports the reason when it is needed.
        """
        if self._child is not None:
            try:
                self._child.finish()
            except ChildFailure:
                self.close()

    def close(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.close()
        self.overhead_s += child.overhead_s
        if self._purpose != "run":
            self._session.journal.append(
                "process_ended",
                purpose=self._purpose,
                lane=self._lane.id,
                started_at=child.started_at,
                cpu_s=child.cpu_s,
            )

    def _spawn(self, purpose: Purpose) -> Child:
        session = self._session
        name = f"{self._lane.id}-{session.number}"
        if purpose == "build":
            # A new compilation must not see the caches of a failed one.
            self._children += 1
            name += f"-{self._children}"
        name += f"-{purpose}"
        kind = self._compiler
        measures = purpose == "run" or (purpose == "build" and kind.occupies == "machine")
        alone = measures and TIMED_START_ALONE
        env = environment.of_threads(self._lane.threads, session.paths.scratch(name), patient=not alone)
        forked = session.forks and not alone and "torch" in kind.runtime_modules
        log, left = session.paths.log(name), session.time.until_end
        child = Child(worker.__name__, env, log, warden=session.warden, forked=forked, left=left)
        modules = kind.runtime_modules
        if purpose == "build" and kind.compile_modules is not None:
            modules = kind.compile_modules
        study = session.plan.study
        child.begin(
            "import",
            study.limits.load_seconds,
            modules=list(modules),
            blocked=list(kind.blocked_modules),
            freed_memory="return" if purpose == "build" else study.freed_memory,
        )
        return child
