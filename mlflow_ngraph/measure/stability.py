"""Checks of a cell for disturbances: stops, foreign load, swapping, throttling, drift and scatter.

Each uses the readings of the cell's slices. Missing readings count as quiet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from mlflow_ngraph.devices.processors import throttled
from mlflow_ngraph.measure.cpu_shares import Window, foreign
from mlflow_ngraph.processes.stops import AGAIN

SIGMA_PER_MAD = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""
DRIFT_LEVEL = 0.01
"""False positive rate of a drift. Six slices are the minimum: fewer have too few orders."""
DRIFT_OVER_SCATTER = 6.0
"""Drift in units of the scatter. Passing neighbours make adjacent slices alike, and chance then resembles a trend."""
SWAPPED_MB = 1.0
"""Swapping without a noticeable delay."""
THROTTLED_SHARE = 0.01
"""Share of the time, and of the periods of a quota, below which a median does not move."""
RESUME = "then measure again with --resume"
UNCOUNTED = "what it measured then does not count"


@dataclass(frozen=True)
class SliceFacts:
    """Readings of a slice."""

    median_s: float
    """Median duration of its repetitions."""
    wall_s: float
    window: Window | None = None
    """Time of the readings; None without any."""
    counted: Mapping[str, float] = field(default_factory=dict)
    """Counter changes; see `mlflow_ngraph.devices.sensors`."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Sensor values at the end."""
    stopped_s: Sequence[float] = ()
    """How long the process stood still in the attempts at the slice; see `mlflow_ngraph.processes.stops`."""

    @classmethod
    def of(cls, taken: Mapping[str, Any]) -> SliceFacts:
        """Readings of a slice from a worker's report."""
        return cls.around(statistics.median(taken["durations_ns"]) / 1e9, taken)

    @classmethod
    def around(cls, median_s: float, taken: Mapping[str, Any]) -> SliceFacts:
        """Readings during work of ``wall_s``, as far as there are any."""
        machine = taken.get("machine", {})
        seen = (machine.get("counted", {}), machine.get("values", {}))
        return cls(median_s, taken["wall_s"], Window.of(machine), *seen, taken.get("stopped_s", ()))


def problem(
    slices: Sequence[SliceFacts],
    processors: int,
    max_foreign_cpu_percent: float,
    max_spread: float,
    max_drift: float = math.inf,
    max_clock_change: float = math.inf,
    max_temperature_rise_c: float = math.inf,
) -> str | None:
    """Explain why the figures of a cell are unreliable, with a remedy; None when they are not.

    The first reason is reported. Causes come first: a machine that swaps also scatters.

    Parameters
    ----------
    processors : int
        Of the whole machine.
    max_foreign_cpu_percent : float
        Largest share of the machine for other processes.
    max_spread : float
        Largest robust coefficient of variation of the slice medians (1.4826 MAD / median); needs three slices.
    max_drift : float
        Largest relative change of the slice medians from the first to the last, along a significant trend.
    max_clock_change : float
        Largest relative range of the clocks over the slices.
    max_temperature_rise_c : float
        Largest rise of the temperature since the first slice.
    """
    reasons = (
        _stopped(slices),
        _swapping(slices),
        _throttling(slices),
        _quota(slices),
        _foreign(slices, processors, max_foreign_cpu_percent),
        _clocks(slices, max_clock_change),
        _temperature(slices, max_temperature_rise_c),
        _drift(slices, max_drift),
        _scatter(slices, max_spread),
    )
    return next((reason for reason in reasons if reason is not None), None)


def stops(slices: Sequence[SliceFacts]) -> str:
    """Name the stops in attempts that do not count; empty without one."""
    return stood_still([seconds for part in slices for seconds in part.stopped_s], UNCOUNTED)


def stood_still(stopped_s: Sequence[float], effect: str) -> str:
    """Name stops with their effect; empty without one."""
    if not stopped_s:
        return ""
    times = f"{len(stopped_s)} times, at most for" if len(stopped_s) > 1 else "for"
    return f"its process stood still {times} {max(stopped_s):.2g} s, and {effect}"


def _stopped(slices: Sequence[SliceFacts]) -> str | None:
    if all(len(part.stopped_s) < AGAIN for part in slices):
        return None
    return f"its process stood still in each of {AGAIN} attempts; leave it running, {RESUME}"


def _swapping(slices: Sequence[SliceFacts]) -> str | None:
    swapped = _counted(slices, "swapped_mb")
    if swapped <= SWAPPED_MB:
        return None
    return f"the machine swapped {swapped:.0f} MB meanwhile; free memory or switch swap off, {RESUME}"


def _throttling(slices: Sequence[SliceFacts]) -> str | None:
    events = _counted(slices, "throttled")
    if events > 0:
        return f"processors were slowed down for heat {events:.0f} times meanwhile; cool the machine, {RESUME}"
    held_s, seconds = _counted(slices, "gpu_throttled_s"), sum(window.seconds for window in _windows(slices))
    if seconds and held_s > THROTTLED_SHARE * seconds:
        share = 100 * held_s / seconds
        return f"the GPU was slowed down for heat in {share:.0f} % of the time; cool the machine, {RESUME}"
    return None


def _quota(slices: Sequence[SliceFacts]) -> str | None:
    times, periods = _counted(slices, "quota_throttled"), _counted(slices, "quota_periods")
    if times <= THROTTLED_SHARE * periods:
        return None
    quota = slices[-1].values.get("quota_processors")
    return f"{throttled(times, periods, quota)}; raise it, or give the study fewer threads, {RESUME}"


def _foreign(slices: Sequence[SliceFacts], processors: int, most: float) -> str | None:
    others = foreign(_windows(slices), processors)
    if others is None or 100 * others.certain <= most:
        return None
    if others.stolen > 0.5:
        return (
            f"others used at least {100 * others.certain:.0f} % of the machine meanwhile, and {100 * others.stolen:.0f} % of "
            f"that was stolen by other virtual machines of its host; choose a quieter time or a host of your own, {RESUME}"
        )
    return f"other processes used at least {100 * others.certain:.0f} % of the machine meanwhile; stop them, {RESUME}"


def _clocks(slices: Sequence[SliceFacts], most: float) -> str | None:
    change = clock_change(slices)
    if change is None or change <= most:
        return None
    clocks = _of_engine(slices, "clock_mhz")
    return (
        f"the clock went between {min(clocks):.0f} and {max(clocks):.0f} MHz ({100 * change:.0f} %); "
        f"fix it (mlflow-ngraph doctor says how), {RESUME}"
    )


def _temperature(slices: Sequence[SliceFacts], most: float) -> str | None:
    temperatures = _of_engine(slices, "temperature_c")
    rise = max(temperatures) - temperatures[0] if temperatures else 0.0
    if rise <= most:
        return None
    return f"the temperature rose by {rise:.0f} °C to {max(temperatures):.0f} °C; cool the machine or lengthen warmup.max_seconds, {RESUME}"


def _drift(slices: Sequence[SliceFacts], most: float) -> str | None:
    change = drift(slices)
    if change is None or abs(change) <= most:
        return None
    way = "slower" if change > 0 else "faster"
    return (
        f"it became {100 * abs(change):.0f} % {way} from its first slice to its last; let the machine settle, {RESUME}"
    )


def _scatter(slices: Sequence[SliceFacts], most: float) -> str | None:
    spread = slice_spread(slices)
    if spread is None or spread <= most:
        return None
    return f"the medians of its slices scatter by {100 * spread:.0f} %; quiet the machine, {RESUME}"


def slice_spread(slices: Sequence[SliceFacts]) -> float | None:
    """Robust coefficient of variation of the slice medians; None for fewer than three."""
    medians = [part.median_s for part in slices]
    return _spread(medians) / statistics.median(medians) if len(medians) >= 3 else None


def drift(slices: Sequence[SliceFacts]) -> float | None:
    """Relative change of the slice medians from first to last; None when chance explains it.

    The slope is that of Theil and Sen on the logarithms, its significance from Kendall's rank correlation with the
    order, and its size must exceed the scatter. All three resist a few outliers.
    """
    if len(slices) < 3:
        return None
    logs = [math.log(part.median_s) for part in slices]
    if min(logs) == max(logs):
        return None
    order = range(len(logs))
    if not stats.kendalltau(order, logs).pvalue < DRIFT_LEVEL:
        return None
    slope = float(stats.theilslopes(logs, order).slope)
    change = slope * (len(logs) - 1)
    if abs(change) < DRIFT_OVER_SCATTER * _spread(
        [value - slope * place for place, value in zip(order, logs, strict=True)]
    ):
        return None
    return math.exp(change) - 1


def clock_change(slices: Sequence[SliceFacts]) -> float | None:
    """Range of the clocks over the slices without the outer tenths, relative to the median; None without clocks."""
    clocks = _of_engine(slices, "clock_mhz")
    if len(clocks) < 3:
        return None
    tenths = statistics.quantiles(clocks, n=10, method="inclusive")
    return (tenths[-1] - tenths[0]) / statistics.median(clocks)


def _spread(values: Sequence[float]) -> float:
    """Standard deviation, estimated from the median absolute deviation."""
    centre = statistics.median(values)
    return SIGMA_PER_MAD * statistics.median(abs(value - centre) for value in values)


def _windows(slices: Sequence[SliceFacts]) -> list[Window]:
    return [part.window for part in slices if part.window is not None]


def _counted(slices: Sequence[SliceFacts], name: str) -> float:
    return sum(part.counted.get(name, 0.0) for part in slices)


def _of_engine(slices: Sequence[SliceFacts], name: str) -> list[float]:
    """Sensor values after each slice: of the GPU if there is one, whose processors only feed it."""
    return list(of_engine((part.values for part in slices), name))


def of_engine(values: Iterator[Mapping[str, float]] | Sequence[Mapping[str, float]], name: str) -> Iterator[float]:
    """Sensor values of the computing hardware: of the GPU if it is read, else of the processors."""
    for said in values:
        value = said.get(f"gpu_{name}", said.get(name))
        if value is not None:
            yield value
