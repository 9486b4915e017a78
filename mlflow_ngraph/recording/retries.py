"""Repeat recording steps that a server interrupts, with growing pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from mlflow_ngraph.errors import UnreachableError
from mlflow_ngraph.tracking.recorder import Recorder

T = TypeVar("T")

_TIMES = 6
_LONGEST_PAUSE_S = 15.0
"""Pauses of 1, 2, 4, 8 and 15 seconds: a server restarts within half a minute."""


def persistently(recorder: Recorder, step: Callable[[], T], on_pause: Callable[[str, float], None]) -> T:
    """Repeat an idempotent step of a recorder until the server completes it.

    Parameters
    ----------
    recorder : Recorder
        Checks the server before each further attempt: a whole step would wait for minutes.
    on_pause : Callable[[str, float], None]
        Called before each pause with the error and the seconds.

    Raises
    ------
    TrackingError
        It refuses; as `UnreachableError`, it was away each time.
    """

    def take() -> T:
        if attempts.statistics["attempt_number"] > 1:
            recorder.preflight()
        return step()

    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None
        assert state.next_action is not None
        on_pause(str(state.outcome.exception()), state.next_action.sleep)

    attempts = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after_attempt(_TIMES),
        wait=wait_exponential(max=_LONGEST_PAUSE_S),
        before_sleep=tell,
        reraise=True,
    )
    return attempts(take)
