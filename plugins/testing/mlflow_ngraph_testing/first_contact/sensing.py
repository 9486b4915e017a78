"""Readings of clocks, temperatures and power, at rest and under load."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from mlflow_ngraph.devices import processors
from mlflow_ngraph.devices.sensors import ENERGY, POWER, Change, Sensors
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph.text import rounded
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.finding import Finding

_WATCHED_S = {"short": 3.0, "full": 20.0}

_WORK = {
    "cpu": "print(flush=True)\nwhile True: pass",
    "cuda": """
import torch
a = torch.rand(4096, 4096, device="cuda")
a @ a
torch.cuda.synchronize()
print(flush=True)
while True:
    a @ a
    torch.cuda.synchronize()
""",
}
"""Programs that keep an accelerator busy; each prints a line when it has begun."""
_STATE = ("clock_mhz", "temperature_c", "gpu_clock_mhz", "gpu_temperature_c", POWER, ENERGY)
"""Prefixes of sensors that show the state of the hardware; the others are the kernel's counters."""


def sensing(bench: Bench, seconds: float) -> Finding:
    """Read every sensor at rest and under load. A sensor that the machine does not show lacks; one that lies is wrong."""
    watched = min(_WATCHED_S[bench.form], seconds / 4)
    accelerator = bench.profile.accelerator
    sensors = Sensors(accelerator=accelerator)
    idle = _watch(sensors, watched)
    with _work(bench, seconds / 2):
        busy = _watch(sensors, watched)
    before, after = _told(idle), _told(busy)
    names = sorted({*before, *after})
    table = Sheet(
        "Sensors",
        ("what", "idle", "under load"),
        [[name, *(rounded(readings.get(name)) or None for readings in (before, after))] for name in names],
    )
    shown = [name for name in names if name.startswith(_STATE)]
    facts = {"seconds": watched, "idle": before, "load": after}
    if problems := _problems(before, after):
        return Finding("wrong", "; ".join(problems), [table], facts)
    if accelerator == "cuda" and not any("gpu" in name or "board" in name for name in shown):
        return Finding("lacking", "no sensor of the GPU is shown", [table], facts)
    if not shown:
        return Finding("lacking", "no clock, temperature or power is shown", [table], facts)
    return Finding("right", f"shown: {', '.join(shown)}", [table], facts)


def _problems(idle: Mapping[str, float], load: Mapping[str, float]) -> list[str]:
    """Impossible readings: below zero, or clocks and power of zero under load."""
    negative = [f"{name} is {value:g}" for readings in (idle, load) for name, value in readings.items() if value < 0]
    return negative + [
        f"{name} is 0 under load" for name, value in load.items() if value == 0 and name.startswith(_STATE)
    ]


def _watch(sensors: Sensors, seconds: float) -> Change:
    start = sensors.begin()
    time.sleep(seconds)
    return sensors.since(start)


def _told(change: Change) -> dict[str, float]:
    """Values of the sensors, and rates per second of the counters: of an energy meter that is its power in W."""
    counted = {f"{name} per s": amount / change.seconds for name, amount in change.counted.items()}
    return {**change.values, **counted}


@contextmanager
def _work(bench: Bench, seconds: float) -> Iterator[None]:
    """Keep all processors, or the GPU, busy while the block runs.

    Raises
    ------
    RuntimeError
        The work does not begin.
    """
    accelerator = bench.profile.accelerator
    workers = processors.available() if accelerator == "cpu" else 1
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        running = [
            stack.enter_context(bench.started(f"load-{number}", [sys.executable, "-c", _WORK[accelerator]]))
            for number in range(workers)
        ]
        while not all((bench.logs / f"load-{number}.out").stat().st_size for number in range(workers)):
            ended = next((worker for worker in running if worker.process.poll() is not None), None)
            if ended is not None or time.monotonic() > deadline:
                why = ended.wait(1.0).how if ended is not None else f"it was not there within {seconds:.0f} s"
                raise RuntimeError(f"no load on {accelerator}: {why}")
            time.sleep(0.05)
        yield
