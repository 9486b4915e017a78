"""Figures of open-loop requests: latency, queue, overload, validity; and the search steps for the highest rate.

docs/explanation/serving.md derives them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.measure import stability
from mlflow_ngraph.measure.open_loop import NEVER

NS = 1e9
MS = 1e6
BEYOND = {"p50": 2, "p90": 10, "p99": 100, "p999": 1000}
"""Percentiles by name, as one request in so many that takes longer."""
LATE_SHARE = 0.05
"""Tolerated lateness of the generator, as a fraction of the latency."""
SEARCH_TOLERANCE = 0.02
"""Resolution of the search, as a fraction of the closed loop's throughput."""
SEARCH_RATES = 8
"""Upper bound of a search's rates, without those of the study."""

Array = NDArray[np.float64]


def figures(event: Mapping[str, Any]) -> dict[str, float]:
    """Figures of one rate, without percentiles that the number of requests does not support.

    Parameters
    ----------
    event : Mapping[str, Any]
        ``rate``, ``window_s`` (length of the schedule), ``servers``, ``due_ns``, ``waited_ns`` and ``served_ns``.
    """
    due, waited, served = (np.asarray(event[name], np.float64) for name in ("due_ns", "waited_ns", "served_ns"))
    done, servers, window = served != NEVER, int(event["servers"]), float(event["window_s"])
    values = {
        "offered_rate": due.size / window,
        "requests": float(due.size),
        "unserved": float(due.size - done.sum()),
    }
    if not done.any():
        return values | {"achieved_rate": 0.0, "overloaded": 1.0}
    late = lateness(due[done], waited[done], served[done], servers)
    ended = float((due + waited + served)[done].max())
    # A dropped request has waited for an unknown time.
    latency = np.where(done, waited + served, np.inf)
    values |= {
        "achieved_rate": float(done.sum()) / ended * NS,
        "latency_mean_ms": float(latency.mean()) / MS,
        **{f"latency_{name}_ms": value / MS for name, value in percentiles(latency).items()},
        "wait_mean_ms": float(waited[done].mean()) / MS,
        "service_mean_ms": float(served[done].mean()) / MS,
        "queue_share": float(waited[done].sum() / latency[done].sum()),
        "utilisation": float(served[done].sum()) / (servers * max(ended, window * NS)),
        "overloaded": float(
            _overloaded(float(event["rate"]), waited[done], served[done], late, servers) or not done.all()
        ),
        **{f"lateness_{name}_ms": _rank(late, BEYOND[name]) / MS for name in ("p50", "p99")},
        "late_share": _late_share(late, latency[done]),
    }
    return {name: value for name, value in values.items() if np.isfinite(value)}


def percentiles(latency: Array) -> dict[str, float]:
    """Observed latencies, each with at least one request expected beyond it."""
    return {name: _rank(latency, one_in) for name, one_in in BEYOND.items() if latency.size >= one_in}


def lateness(due: Array, waited: Array, served: Array, servers: int) -> Array:
    """Time that each due request waited although a server was free: the generator's own delay.

    Parameters
    ----------
    due, waited, served : Array
        Of requests in order of arrival, in nanoseconds; shape (requests,).
    """
    busy: list[float] = []
    late = np.empty_like(due)
    for index, (moment, wait, work) in enumerate(zip(due.tolist(), waited.tolist(), served.tolist(), strict=True)):
        # Requests are served in order of arrival, so the server that was free first took it.
        free = heapq.heappop(busy) if len(busy) == servers else moment
        late[index] = max(0.0, wait - max(0.0, free - moment))
        heapq.heappush(busy, moment + wait + work)
    return late


def invalid(event: Mapping[str, Any], found: Mapping[str, float], processors: int, quiet: Mapping[str, float]) -> str:
    """Reason why the figures of a rate do not count; empty when they do."""
    if found.get("late_share", 0.0) > LATE_SHARE:
        return (
            f"requests were started {found['lateness_p50_ms']:.3g} ms late in the median, {found['lateness_p99_ms']:.3g} "
            f"ms in the 99th percentile, which is too much beside the latency"
        )
    facts = stability.SliceFacts.around(found.get("latency_p50_ms", 0.0) / 1e3, event)
    return stability.problem([facts], processors, **quiet) or ""


def kept(row: Mapping[str, Any], max_p99_ms: float) -> bool:
    """Return True when a rate kept the bound; an overloaded one did not."""
    return bool(row["valid"] and not row["overloaded"] and row.get("latency_p99_ms", np.inf) <= max_p99_ms)


class Search:
    """Bisects for the highest rate that keeps a bound.

    Parameters
    ----------
    throughput : float
        Requests per second in the closed loop, an upper bound of the rate.
    """

    def __init__(self, throughput: float) -> None:
        self._throughput = throughput
        self._kept: list[float] = []
        self._broken: list[float] = []
        self._left = SEARCH_RATES

    def learn(self, rate: float, *, kept: bool) -> None:
        """Add the result of a rate."""
        (self._kept if kept else self._broken).append(rate)

    def next(self) -> float | None:
        """The next rate to try; None when the answer is precise enough or there were too many."""
        high = min([*self._broken, self._throughput])
        # A rate above a broken one may have kept the bound by chance: it does not count.
        low = max([rate for rate in self._kept if rate < high], default=0.0)
        if self._left == 0 or high - low <= SEARCH_TOLERANCE * self._throughput:
            return None
        self._left -= 1
        return (low + high) / 2


def headlines(rows: Sequence[Mapping[str, Any]], max_p99_ms: float | None) -> dict[str, float]:
    """Summary of a cell's rates: the highest within the bound, and the highest without overload."""
    values: dict[str, float] = {}
    steady = [row for row in rows if row["valid"] and not row["overloaded"]]
    if steady:
        peak = max(steady, key=lambda row: float(row["rate"]))
        values["serve_peak_rate"] = float(peak["rate"])
        for name in ("p99", "p999"):
            if f"latency_{name}_ms" in peak:
                values[f"serve_peak_{name}_ms"] = float(peak[f"latency_{name}_ms"])
    if max_p99_ms is None:
        return values
    broken = min((float(row["rate"]) for row in rows if row["valid"] and not kept(row, max_p99_ms)), default=np.inf)
    within = [row for row in rows if kept(row, max_p99_ms) and row["rate"] < broken]
    if within:
        best = max(within, key=lambda row: float(row["rate"]))
        values["serve_max_rate"] = float(best["rate"])
        values["serve_max_rate_p99_ms"] = float(best["latency_p99_ms"])
    return values


def row(event: Mapping[str, Any], processors: int, quiet: Mapping[str, float]) -> dict[str, Any]:
    """All figures of one rate of a cell, and their validity.

    Parameters
    ----------
    processors : int
        Of the whole machine.
    quiet : Mapping[str, float]
        The bounds of `stability.problem`.
    """
    values: dict[str, Any] = dict(figures(event))
    reason = invalid(event, values, processors, quiet)
    names = ("session", "step", "purpose", "rate", "process", "window_s", "servers")
    values["overloaded"] = bool(values["overloaded"])
    return {**{name: event[name] for name in names}, **values, "valid": not reason, "reason": reason}


def _overloaded(rate: float, waited: Array, served: Array, late: Array, servers: int) -> bool:
    """Return True when requests arrive as fast as the servers can serve them, by their speed in the second half."""
    # Between two queued requests a server is delayed as well.
    taken = served + np.where(waited > late, late, 0.0)
    return rate * float(taken[taken.size // 2 :].mean()) / NS / servers >= 1.0


def _late_share(late: Array, latency: Array) -> float:
    return max(_rank(late, BEYOND[name]) / _rank(latency, BEYOND[name]) for name in ("p50", "p99"))


def _rank(values: Array, one_in: int) -> float:
    """The observed value that one in so many exceeds, so that unknown values stay unknown."""
    return float(np.quantile(values, 1 - 1 / one_in, method="inverted_cdf"))
