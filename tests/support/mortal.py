"""Servers that end with the tests: whoever is killed tidies up nothing."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

SCRIPT = 'read -r _ || kill -s "$1" -- "$0"'
"""The pipe ends without a line only where its other end has."""


@contextmanager
def mortal(whom: int, signum: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Send a process, or the group whose number is negated, a signal if this process ends before the block does."""
    command = ["sh", "-c", SCRIPT, str(whom), str(int(signum))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.communicate(b"\n")
