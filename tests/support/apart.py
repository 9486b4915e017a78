"""Runtimes in processes of their own, as studies have them: what one does to its process harms neither another nor the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from mlflow_ngraph_testing import steps

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


def with_torch(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of a module returns or raises in a process of its own that has imported PyTorch already."""
    return apart("torch", _forked, partial(step, *args, **kwargs), dict(os.environ), sys.path, Path.cwd())


def _forked(step: Callable[[], T], environment: dict[str, str], path: list[str], directory: Path) -> T:
    import torch  # noqa: F401 - for those that are forked

    settled = environment, path, directory
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=_settle, initargs=settled) as pool:
        return pool.submit(step).result()


def _settle(environment: dict[str, str], path: list[str], directory: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    os.chdir(directory)


class OnTorch:
    """What the contract suite of an adapter on PyTorch's runtime begins with."""

    @classmethod
    def _run(cls, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # What the asked process imports is the question.
        run = steps.in_fresh_process if step is steps.ask else with_torch
        return run(step, *args, **kwargs)
