"""An engine in a process of its own, in a script of a few lines, with nothing else alive."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_ngraph.execute.lane import SETTLE_S
from mlflow_ngraph.execute.lane_progress import RELOAD_CALLS
from mlflow_ngraph.process_memory import FreedMemory
from mlflow_ngraph.processes import environment

_SCRIPT = """
import gc, json, statistics, sys, time
from pathlib import Path
import psutil
sys.modules["openvino_telemetry"] = None
given = json.loads(sys.argv[1])
from mlflow_ngraph import process_memory as memory
from mlflow_ngraph.measure import loop
assert given["freed_memory"] == "return" or memory.keep_freed()
from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.workloads.materials import Source
source, batch = Source(Path(given["materials"])), given["batch"]
engine = create(given["compiler"], given["flags"]).load(Path(given["engine"]), batch, Target(**given["target"]))
invocation = engine.bind(source.example(batch))
loop.settle(invocation.call, 0.0, calls=given["calls"])
loop.settle(invocation.call, given["age_s"] - (time.time() - psutil.Process().create_time()))
gc.collect()
gc.disable()
loop.settle(invocation.call, given["settle_s"])
times, end, before = [], time.perf_counter() + given["seconds"], loop.page_faults()
while time.perf_counter() < end or len(times) < 3:
    start = time.perf_counter()
    invocation.call()
    times.append(time.perf_counter() - start)
faults = (loop.page_faults() - before) / len(times)
print(json.dumps({"median_s": statistics.median(times), "page_faults": faults}))
"""


@dataclass(frozen=True)
class Found:
    """What one process measured."""

    median_s: float
    """Of a call."""
    page_faults: float
    """By call."""


def measured(
    given: Mapping[str, Any], threads: int | None, freed_memory: FreedMemory = "keep", age_s: float = 0.0
) -> Found:
    """Load an engine, call it untimed as often as a study does in a fresh process, and time it.

    Parameters
    ----------
    given: ``compiler``, ``flags``, ``engine`` and ``materials`` (directories), ``batch``, ``target`` and ``seconds``.
    age_s: seconds since the start of the process before which the timing does not begin: the kernel goes on putting the
        pages of a process together into large ones for some time. The engine is called meanwhile, because a virtual
        machine that has slept is slow to wake.
    """
    settled = {"calls": 1 + RELOAD_CALLS, "settle_s": SETTLE_S, "freed_memory": freed_memory, "age_s": age_s}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, json.dumps({**given, **settled})],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment.of_threads(threads, Path(scratch)),
        )
    return Found(**json.loads(done.stdout.splitlines()[-1]))
