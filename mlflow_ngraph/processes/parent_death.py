"""End a process with its parent, even when that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def send_to_self(signum: signal.Signals | None, parent: int | None = None) -> None:
    """Have the kernel signal this process when the thread that started it ends; None: no longer. Linux only.

    ``parent`` was its parent at the start: the signal is sent at once if that has ended since.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum or 0, 0, 0, 0)
    if signum is not None and parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signum)
