"""The verdict on a cell: whether its engine computes the model's function and its run came to an end, or what went wrong.

How far a figure of the cell can be trusted is a question for that figure: its interval, and what disturbed the machine.
"""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What became of a cell. Only ``OK`` enters a ranking."""

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
        """Whether the engine ran to the end of its rounds, and nothing is wrong with what it computes, as far as can be told."""
        return self in (Verdict.OK, Verdict.UNVERIFIED)

    @property
    def retryable(self) -> bool:
        """Whether measuring again can end differently: the cause may lie outside the cell."""
        return self in (Verdict.TIMEOUT, Verdict.OOM, Verdict.CRASHED, Verdict.LEFT_OUT)
