"""Runtimes in processes of their own, as studies have them: what one does to its process harms neither another nor the tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_processes: dict[str, ProcessPoolExecutor] = {}


def apart(runtime: str, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of a module returns or raises in the process that all tests here have for a runtime.

    Raises
    ------
    BrokenProcessPool
        The process has died of it. The next one who asks gets another.
    """
    if runtime not in _processes:
        _processes[runtime] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    process = _processes[runtime]
    try:
        return process.submit(step, *args, **kwargs).result()
    except BrokenProcessPool:
        del _processes[runtime]
        raise
