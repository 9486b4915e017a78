"""The verdict on a cell: whether its number may be trusted, or why there is none."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What is known about the number of a cell. Only ``OK`` enters a ranking."""

    OK = "ok"
    UNSTABLE = "unstable"
    PARITY_FAILED = "parity_failed"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASHED = "crashed"

    def __str__(self) -> str:
        return self.value

    @property
    def measured(self) -> bool:
        """Whether the engine ran to the end of its rounds, and nothing is wrong with what it computes, as far as can be told."""
        return self in (Verdict.OK, Verdict.UNSTABLE, Verdict.UNVERIFIED)

    @property
    def retryable(self) -> bool:
        """Whether measuring again can end differently: the cause may lie outside the cell."""
        return self in (Verdict.UNSTABLE, Verdict.TIMEOUT, Verdict.OOM, Verdict.CRASHED)
