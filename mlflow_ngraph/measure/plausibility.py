"""Check the readings of a slice or rate: an impossible clock is an error, an impossible sensor value is dropped.

An impossible clock of the measurement is an error of the cell, as all its figures depend on it. An impossible sensor
value is dropped, as if the machine had no such sensor. Coarse values are neither: see
`mlflow_ngraph.measure.cpu_shares`. docs/explanation/machine.md lists the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlflow_ngraph.errors import ImpossibleReadingError
from mlflow_ngraph.measure.cpu_shares import TICK_S
from mlflow_ngraph.measure.loop import NS
from mlflow_ngraph.measure.open_loop import NEVER

SLACK_NS = 1000
"""Tolerated difference between sums of nanoseconds and a float of seconds, read in succession."""
CLOCKS_APART = 1e-3
"""Largest relative drift between a disciplined clock and another."""
KINDS_OF_WORK = 6
"""Kinds of CPU time of the kernel, each rounded to a tick."""
TEMPERATURES_C = (-90.0, 150.0)
"""Silicon stops below the upper bound; broken sensors report absolute zero or all ones."""
LONGEST_S = 1e9
"""Thirty years: a longer window has a wrong clock."""
MOST_CLOCK_MHZ = 20_000.0
MOST_POWER_W = 20_000.0
"""Upper bound of one meter: more than the supply of any machine."""

Report = Mapping[str, Any]


def checked_slice(taken: Report, processors: int) -> dict[str, Any]:
    """Validate a worker's report of a slice; drop impossible sensor values.

    Parameters
    ----------
    processors : int
        Of the whole machine.

    Raises
    ------
    ImpossibleReadingError
        A clock or counter of the measurement is impossible.
    """
    durations = taken["durations_ns"]
    _require(len(durations) > 0, "a slice", "repetitions", 0, "at least one is timed")
    shortest = min(durations)
    _require(shortest > 0, "a slice", "the shortest repetition [ns]", shortest, "it took some time")
    _times("a slice", taken, busy_ns=sum(durations), at_once=1, processors=processors)
    settled = taken["settle_s"]
    _require(
        math.isfinite(settled) and settled >= 0, "a slice", "the time before it [s]", settled, "it is not negative"
    )
    _require(
        taken["peak_bytes"] > 0, "a slice", "the memory of its process [bytes]", taken["peak_bytes"], "it has some"
    )
    kept = {**taken, "machine": _machine(taken["machine"], processors)}
    if kept["page_faults"] < 0:
        del kept["page_faults"]
    return kept


def checked_arrivals(served: Report, processors: int) -> dict[str, Any]:
    """Validate a worker's report of open-loop requests as `checked_slice` does."""
    due, waited, worked = served["due_ns"], served["waited_ns"], served["served_ns"]
    done = [place for place, length in enumerate(worked) if length != NEVER]
    late, first = min((waited[place] for place in done), default=0), min(due, default=0)
    _require(
        min(late, first) >= 0, "a rate", "the shortest waiting of a request [ns]", min(late, first), "none came early"
    )
    shortest = min((worked[place] for place in done), default=1)
    _require(shortest > 0, "a rate", "the shortest inference [ns]", shortest, "it took some time")
    busy_ns = sum(worked[place] for place in done)
    _times("a rate", served, busy_ns=busy_ns, at_once=served["servers"], processors=processors)
    ended = max((due[place] + waited[place] + worked[place] for place in done), default=0)
    _at_most("a rate", "the end of the last request [ns]", ended, served["wall_s"] * NS + SLACK_NS)
    return {**served, "machine": _machine(served["machine"], processors)}


def _times(what: str, report: Report, *, busy_ns: int, at_once: int, processors: int) -> None:
    """Check the times that all figures depend on: of the clock, and of the process."""
    wall, machine = report["wall_s"], report["machine"]
    window, cpu = machine["seconds"], machine["cpu_s"]
    _require(report["started_ns"] > 0, what, "the time of day [ns since 1970]", report["started_ns"], "clocks are set")
    _require(math.isfinite(wall) and wall > 0, what, "its length [s]", wall, "it took some time")
    _at_most(what, "the sum of its inferences [ns]", busy_ns, at_once * (wall * NS + SLACK_NS))
    _at_most(what, "the time in which it was watched [s]", window, LONGEST_S)
    _at_most(what, "its length [s]", wall, window * (1 + CLOCKS_APART) + SLACK_NS / NS)
    _require(math.isfinite(cpu) and cpu >= 0, what, "the CPU time of its process [s]", cpu, "it is not negative")
    # Threads on other processors are charged at the next tick for their time before the window.
    _at_most(what, "the CPU time of its process [s]", cpu, processors * (window * (1 + CLOCKS_APART) + TICK_S))


def _machine(machine: Report, processors: int) -> dict[str, Any]:
    """Readings of the sensors without impossible values."""
    seconds = machine["seconds"]
    counted = {name: _held(name, grown, seconds) for name, grown in machine["counted"].items()}
    longest = {name: _longest(name, seconds, processors) for name in counted}
    busy, rounding = machine["busy_s"], (1 + KINDS_OF_WORK) * TICK_S
    fine = all(
        math.isfinite(spent) and 0 <= spent <= seconds * (1 + CLOCKS_APART) + rounding for spent in busy.values()
    )
    return {
        **machine,
        "counted": {
            name: grown for name, grown in counted.items() if math.isfinite(grown) and 0 <= grown <= longest[name]
        },
        "busy_s": busy if fine else {},
        "values": {name: value for name, value in machine["values"].items() if _can_be(name, value)},
    }


def _held(name: str, grown: float, seconds: float) -> float:
    """Limit a throttling time to the window, as drivers advance it in steps."""
    return min(grown, seconds) if name in ("gpu_throttled_s", "gpu_power_capped_s") else grown


def _longest(name: str, seconds: float, processors: int) -> float:
    """Largest growth of a counter in a time; unbounded when unknown. No counter decreases."""
    if name.startswith("energy_j."):
        return MOST_POWER_W * seconds
    if name in ("machine_busy_s", "stolen_s"):
        return processors * (seconds * (1 + CLOCKS_APART) + TICK_S) + KINDS_OF_WORK * TICK_S
    return math.inf


def _can_be(name: str, value: float) -> bool:
    if not math.isfinite(value):
        return False
    if name.endswith("temperature_c"):
        return TEMPERATURES_C[0] < value < TEMPERATURES_C[1]
    if name.endswith("clock_mhz"):
        return 0 < value <= MOST_CLOCK_MHZ
    return 0 <= value <= (MOST_POWER_W if name.startswith("power_w.") else math.inf)


def _at_most(what: str, reading: str, value: float, bound: float) -> None:
    _require(value <= bound, what, reading, value, f"it is at most {bound:.9g}")


def _require(fine: bool, what: str, reading: str, value: float, rule: str) -> None:
    if not fine:
        raise ImpossibleReadingError(
            f"impossible reading of {what}: {reading} is {value:.9g}, but {rule}; see what `dmesg` says of this machine's "
            "clock source, then measure again with --fresh"
        )
