"""What takes time is timed by a clock that nobody sets."""

from __future__ import annotations

import re
from pathlib import Path

import mlflow_ngraph

ROOT = Path(mlflow_ngraph.__file__).parent
TIMING = (
    "measure/*.py",
    "devices/*.py",
    "compilers/**/*.py",
    "workloads/**/*.py",
    "execute/worker.py",
    "execute/verifying.py",
)
TIME_OF_DAY = re.compile(r"\btime\.time(_ns)?\b|from time import .*\btime(_ns)?\b|\bdatetime\.|CLOCK_REALTIME")


def test_the_time_of_day_is_read_for_the_beginning_of_a_slice_alone() -> None:
    lines = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for pattern in TIMING
        for path in ROOT.glob(pattern)
        for line in path.read_text(encoding="utf-8").splitlines()
        if TIME_OF_DAY.search(line)
    }
    assert lines == {
        "measure/loop.py: faults, started = page_faults(), time.time_ns()",
        "measure/open_loop.py: at, entered = time.time_ns(), clock.now()",
    }
