"""Take over the pipes of a child process, out of reach of other code in it.

Models, factories and runtimes print, and some read: they would take our commands, or wait for input forever.
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

    Standard input is then at its end, and standard output goes to standard error. Forked processes have neither pipe,
    so that the parent sees the end of this process and not of theirs.

    Returns
    -------
    tuple[IO[str], IO[str]]
        Commands of the parent, and the pipe for answers.
    """
    pipes = [_moved(0), _moved(1)]
    _put(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=lambda: _let_go(pipes))
    builtins.input = _unanswered
    return os.fdopen(pipes[0], encoding="utf-8"), os.fdopen(pipes[1], "w", buffering=1, encoding="utf-8")


def _moved(number: int) -> int:
    """Copy a file descriptor, far from the numbers that other code may use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, max(3, min(_FAR, soft - 4)))


def _let_go(pipes: list[int]) -> None:
    """Redirect the pipes to nothing: code that has them open may still write and close them."""
    for pipe in pipes:
        _put(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), pipe)


def _put(found: int, place: int) -> None:
    os.dup2(found, place, inheritable=place == 0)
    os.close(found)


def _unanswered(prompt: object = "", /) -> NoReturn:
    """Replaces `input`, whose own error omits the prompt."""
    asked = " ".join(str(prompt).split())
    raise EOFError(f"it asks {asked!r}, and nobody is there to answer: input() has nothing to read")
