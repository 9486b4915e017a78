"""Health checks of a serving process: frequent and with test inferences while its engine is new."""

from __future__ import annotations

import time
from contextlib import suppress

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph_serve.following.engine_server import EngineServer

LOOK_S = 1.0
"""Interval between two health checks of a new engine."""
LATER_LOOK_S = 10.0
"""The same once it has proven itself."""
PROBE_S = 10.0
"""Interval between two test inferences: there may be no client who would notice."""
SILENT = 3
"""Looks without an answer, one after the other, by which a process has failed: a busy machine may keep one from answering."""
_ANSWER_S = 5.0
"""Timeout of a test inference concurrent with clients."""


class Watch:
    """Health checks of one process.

    Parameters
    ----------
    trial_s : float | None
        Trial period of a new engine; None: it has proven itself.
    """

    def __init__(self, server: EngineServer, trial_s: float | None = None) -> None:
        now = time.monotonic()
        self.on_trial = trial_s is not None
        self._server = server
        self._until = now + (trial_s or 0.0)
        self._look_at, self._probe_at = now + LOOK_S, now + PROBE_S
        self._silent = 0

    @property
    def passed(self) -> bool:
        """Test if the trial period of a new engine is over."""
        return self.on_trial and time.monotonic() >= self._until

    @property
    def due(self) -> float:
        """When there is something to do, by the monotonic clock."""
        return min(self._look_at, self._until) if self.on_trial else self._look_at

    def problem(self) -> str:
        """Reason for taking clients from it; empty without one. Checks when a check is due."""
        if self._server.failed or time.monotonic() < self._look_at:
            return self._server.failed
        trouble = self._server.trouble()
        self._silent = self._silent + 1 if trouble is None else 0
        self._look_at = time.monotonic() + (LOOK_S if self.on_trial else LATER_LOOK_S)
        if self._silent >= SILENT:
            return f"it did not answer {SILENT} times"
        return trouble or self._probed()

    def _probed(self) -> str:
        if self.on_trial and time.monotonic() >= self._probe_at:
            self._probe_at = time.monotonic() + PROBE_S
            # That it is busy, or does not answer at all, others have to find.
            with suppress(EngineError):
                return self._server.difference(_ANSWER_S)
        return ""
