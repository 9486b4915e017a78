"""Recording through cuts: a step that a server interrupts is taken again, and again later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from mlflow_ngraph.errors import UnreachableError
from mlflow_ngraph.tracking.recorder import Recorder

T = TypeVar("T")

_TIMES = 6
_LONGEST_PAUSE_S = 15.0
"""Pauses of 1, 2, 4, 8 and 15 seconds: half a minute is what a server takes to be restarted."""


def persistently(recorder: Recorder, step: Callable[[], T], on_pause: Callable[[str, float], None]) -> T:
    """Take a step of a recorder, which changes nothing when it is taken twice, until a server lets it be finished.

    Parameters
    ----------
    recorder : Recorder
        Asks whether the server is there again before each further attempt: that ends soon where a whole step would wait for
        minutes.
    on_pause : Callable[[str, float], None]
        Told, before each pause, what went wrong and how many seconds it takes.

    Raises
    ------
    TrackingError
        It refuses, or as `UnreachableError` was away each time.
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
