"""Verdicts on cells: ``ok``, or why a cell has no trustworthy number.

How far a figure can be trusted is a question for its interval and for what disturbed the machine.
"""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """Status of a cell. Only ``OK`` enters a ranking."""

    OK = "ok"
    BUILT = "built"
    """Compiled for a device that is not this machine, and never run."""
    PARITY_FAILED = "parity_failed"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASHED = "crashed"
    LEFT_OUT = "left_out"
    """Not measured for lack of time."""

    def __str__(self) -> str:
        return self.value

    @property
    def measured(self) -> bool:
        """True if the engine completed its rounds without a known error in its outputs."""
        return self in (Verdict.OK, Verdict.UNVERIFIED)

    @property
    def retryable(self) -> bool:
        """True if another run can end differently, because the cause may lie outside the cell."""
        return self in (Verdict.TIMEOUT, Verdict.OOM, Verdict.CRASHED, Verdict.LEFT_OUT)
