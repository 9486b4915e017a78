"""The end of a process with that of its parent, however that ends: a parent that is killed can tell nobody."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def send_to_self(signum: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process a signal as soon as the thread that started it has ended. Linux alone can.

    Parameters
    ----------
    parent : int | None
        Who the parent was when this process was started, where nothing else tells that it has ended since: the signal is then
        sent now.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signum)
