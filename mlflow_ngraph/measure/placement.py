"""Where a thread runs."""

from __future__ import annotations

import os
import random


def move_thread(rng: random.Random) -> None:
    """Move the calling thread to a random one of the processors that it may run on, and leave it free to go on.

    The scheduler leaves a busy thread where it is. Of two processors that should be equal one may be slower (something
    else on the other hardware thread of its core, or the host of a virtual machine), and a process whose main thread
    sits there would be slower as long as it lives. A thread that a runtime has pinned stays where it is.
    """
    if not hasattr(os, "sched_setaffinity"):
        return  # a system that does not tell processors apart
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {rng.choice(sorted(allowed))})
    os.sched_setaffinity(0, allowed)
