"""What the package says to an input: that it takes it, or in one line why not; everything else is a defect."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

LIMIT_S = 20.0
"""What an input may take."""


@dataclass(frozen=True)
class Answer:
    """How an input was answered."""

    kind: Literal["taken", "refused", "defect"]
    said: str
    """The line, or the end of the traceback."""
    seconds: float


class HangError(BaseException):
    """An input takes too long. No handler of ordinary errors keeps it from being told."""


def answer(call: Callable[[], object], limit_s: float = LIMIT_S) -> Answer:
    """Give an input to the package.

    Parameters
    ----------
    limit_s : float
        From when on it hangs.
    """
    from mlflow_ngraph.errors import NGraphError

    begun = time.monotonic()
    try:
        with _limited(limit_s):
            call()
        kind, said = "taken", ""
    except NGraphError as error:
        line = str(error)
        ok = line and len(line.splitlines()) == 1 and len(line) < 4000
        kind, said = ("refused", line) if ok else ("defect", f"not one line: {line[:300]!r}")
    except HangError:
        kind, said = "defect", f"no answer within {limit_s:g} s: {_last(8)}"
    except Exception:  # noqa: BLE001 - that is what is looked for
        kind, said = "defect", _last(4)
    return Answer(kind, said, time.monotonic() - begun)  # type: ignore[arg-type] # one of the three


def _last(lines: int) -> str:
    return " | ".join(" ".join(line.split()) for line in traceback.format_exc().strip().splitlines()[-lines:])[-600:]


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
