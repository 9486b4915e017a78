"""Refusal: exception for a refused request, with its HTTP status and the reason for the metrics."""

from __future__ import annotations

from typing import Literal

from mlflow_ngraph.text import brief

Reason = Literal[
    "malformed",
    "unknown",
    "foreign",
    "too_large",
    "slow",
    "queue_full",
    "latency",
    "crowded",
    "unread",
    "gone",
    "not_ready",
    "timeout",
    "values",
    "engine",
    "internal",
]
"""Reason for refusing a request; the values of the label ``reason``."""


LONGEST = 500
"""Characters of a line."""


class Refusal(Exception):  # noqa: N818 - most refusals are nobody's error
    """Ends a request with a status and one line.

    Parameters
    ----------
    retry_after_s : float | None
        When asking again makes sense.
    close : bool
        End the connection too, because the rest of the request is not read.
    """

    def __init__(
        self, status: int, reason: Reason, message: str, *, retry_after_s: float | None = None, close: bool = False
    ) -> None:
        super().__init__(brief(message, LONGEST))
        self.status = status
        self.reason: Reason = reason
        self.retry_after_s = retry_after_s
        self.close = close


def malformed(message: str) -> Refusal:
    """Refusal of a malformed request."""
    return Refusal(400, "malformed", message)
