"""Somebody else's work on this machine: processors that are busy in bursts or all the time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_BURSTS = """
import random, sys, time
shortest, longest, share = map(float, sys.argv[1:])
rng = random.Random(0)
while True:
    deadline = time.monotonic() + rng.uniform(shortest, longest)
    while time.monotonic() < deadline:
        pass
    time.sleep(rng.uniform(shortest, longest) * (1 - share) / share)
"""


@contextmanager
def bursts(shortest: float, longest: float, share: float) -> Iterator[None]:
    """Keep one processor busy now and then, always in the same pattern.

    Parameters
    ----------
    shortest, longest : float
        Seconds of a burst.
    share : float
        Of the time in which the processor is busy.
    """
    process = subprocess.Popen([sys.executable, "-c", _BURSTS, str(shortest), str(longest), str(share)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def steady(processors: int) -> Iterator[None]:
    """Keep processors busy all the time."""
    with ExitStack() as stack:
        for _ in range(processors):
            stack.enter_context(bursts(1, 1, 1))
        yield
