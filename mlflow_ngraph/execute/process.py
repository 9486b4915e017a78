"""The process of a lane: one that compiles, and after it a fresh one that measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.engines import environment
from mlflow_ngraph.execute.child import Child, ChildFailure, Warden
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.process_memory import FreedMemory

Purpose = Literal["build", "run"]


class LaneProcess:
    """At most one child at a time, which begins by importing what it needs.

    Parameters
    ----------
    import_seconds : float
        Time limit for imports.
    freed_memory : FreedMemory
        What the measuring process does with memory that it frees.
    left : Callable[[], float]
        The seconds that are left for everything.
    """

    def __init__(
        self,
        lane: Lane,
        compiler: Compiler[Any],
        places: Places,
        warden: Warden,
        session: int,
        *,
        import_seconds: float,
        freed_memory: FreedMemory,
        left: Callable[[], float],
    ) -> None:
        self.overhead_s = 0.0
        """Of the children that have ended; see `Child.overhead_s`."""
        self._lane = lane
        self._compiler = compiler
        self._places = places
        self._warden = warden
        self._session = session
        self._import_seconds = import_seconds
        self._freed_memory = freed_memory
        self._left = left
        self._child: Child | None = None
        self._children = 0
        """That have compiled."""

    def start(self, purpose: Purpose) -> Child:
        """The child, started if there is none, without waiting for it."""
        if self._child is None:
            self._child = self._spawn(purpose)
        return self._child

    def ready(self, purpose: Purpose) -> Child:
        """The child, which has imported everything: nothing that is timed next contains an import.

        Raises
        ------
        ChildFailure
            It cannot import what it needs.
        """
        child = self.start(purpose)
        child.finish()
        return child

    def settle(self) -> None:
        """Wait until the child, if there is one, has imported everything.

        One that cannot is ended: another takes its place where it is needed, and says why.
        """
        if self._child is not None:
            try:
                self._child.finish()
            except ChildFailure:
                self.close()

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.close()
            self.overhead_s += self._child.overhead_s
            self._child = None

    def _spawn(self, purpose: Purpose) -> Child:
        name = f"{self._lane.id}-{self._session}"
        if purpose == "build":
            # What compiles starts without the caches of whatever failed before it.
            self._children += 1
            name += f"-{self._children}"
        name += f"-{purpose}"
        env = environment.of_threads(self._lane.threads, self._places.scratch(name))
        child = Child(name, env, self._places.log(name), self._warden, self._left)
        kind = self._compiler
        modules = kind.runtime_modules
        if purpose == "build" and kind.compile_modules is not None:
            modules = kind.compile_modules
        child.begin(
            "import",
            self._import_seconds,
            modules=list(modules),
            blocked=list(kind.blocked_modules),
            freed_memory=self._freed_memory if purpose == "run" else "return",
        )
        return child
