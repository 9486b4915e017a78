"""The pipes that a child process is asked and answers through, out of reach of whatever else runs in it.

Models, factories and runtimes print what they like, and some ask questions: what they read would be our commands, and what
they wait for never comes.
"""

from __future__ import annotations

import builtins
import fcntl
import os
import resource
from typing import IO, NoReturn

_FAR = 240


def take() -> tuple[IO[str], IO[str]]:
    """Take the pipes from standard input and output. To be called once, before anything is read.

    From then on standard input is at its end, and what is printed goes to standard error. Processes that this one forks
    have neither pipe: whoever waits for the end of this process at the other one would wait for theirs.

    Returns
    -------
    tuple[IO[str], IO[str]]
        Where the lines of the parent come from, and where answers go.
    """
    pipes = [_moved(0), _moved(1)]
    _put(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=lambda: _let_go(pipes))
    builtins.input = _unanswered
    return os.fdopen(pipes[0], encoding="utf-8"), os.fdopen(pipes[1], "w", buffering=1, encoding="utf-8")


def _moved(number: int) -> int:
    """A copy of a file descriptor, far from the numbers that other code may take for its own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(3, min(_FAR, soft - 4)))


def _let_go(pipes: list[int]) -> None:
    """Put nothing in the place of the pipes: what has them open may still write, and close them."""
    for pipe in pipes:
        _put(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), pipe)


def _put(found: int, place: int) -> None:
    os.dup2(found, place, inheritable=place == 0)
    os.close(found)


def _unanswered(prompt: object = "", /) -> NoReturn:
    """Stands for `input`, whose own error does not say what was asked."""
    asked = " ".join(str(prompt).split())
    raise EOFError(f"it asks {asked!r}, and nobody is there to answer: input() has nothing to read")
