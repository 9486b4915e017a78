"""Every test may use all processors, whatever ran in its process before."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_ALL = os.sched_getaffinity(0)


@pytest.fixture(autouse=True)
def every_processor() -> Iterator[None]:
    """TVM binds the thread that runs it to one processor, and processes that are started from there inherit that."""
    os.sched_setaffinity(0, _ALL)
    yield
    os.sched_setaffinity(0, _ALL)
