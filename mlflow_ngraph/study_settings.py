"""Sections of a study: compilers with flags, warm-up, repetitions, stability, arrivals and limits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mlflow_ngraph.text import shortened
from mlflow_ngraph.validation import duration_s

Process = Literal["poisson", "uniform"]
"""Distribution of arriving requests."""
AUTO_FRACTIONS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""The rates of ``arrivals: auto``, as fractions of the closed loop's throughput."""
FEWEST_ARRIVALS = 100
"""Requests of a rate, so that one is expected beyond the 99th percentile."""
TYPICAL_SEARCH = 5
"""Typical number of rates in a search."""

_MOST_DIGITS = 20


class Section(BaseModel):
    """A mapping of a study with declared keys only."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class CompilerChoice(Section):
    """A compiler of a study with its flags. In YAML either a name or a mapping."""

    name: str
    flags: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Flags that differ from the compiler's defaults."""

    @property
    def label(self) -> str:
        """The name with the given flags."""
        shown = ",".join(f"{key}={value}" for key, value in sorted(self.flags.items()))
        return f"{self.name}[{shown}]" if shown else self.name


class WarmUp(Section):
    """End of a cell's warm-up: the medians of two neighbouring windows agree, or time is up."""

    window: int = Field(5, ge=2)
    """Repetitions in a window."""
    tolerance: float = Field(0.05, gt=0, lt=1)
    """Largest relative difference between the medians of two neighbouring windows that counts as steady."""
    max_seconds: float = Field(3.0, gt=0)
    """Stop warming up after this many seconds, with a remark."""


class Adaptive(Section):
    """End of a cell's repetitions, with ``repetitions: auto``."""

    within: float = Field(0.01, gt=0, lt=1)
    """Margin of error of the 95 % interval of the throughput, as a fraction of it: 0.01 is ± 1 %."""
    min_rounds: int = Field(8, ge=2)
    """Rounds before the interval is used: it is unreliable with fewer."""
    max_repetitions: int = Field(200, ge=1)
    """Stop after this many repetitions, and report the interval reached."""


class Stability(Section):
    """Limits beyond which the machine counts as noisy, and the absolute figures of a cell as unsteady."""

    max_foreign_cpu_percent: float = Field(10.0, ge=0)
    """Largest share of the whole machine that other processes may use during the measurement."""
    max_spread: float = Field(0.1, gt=0)
    """Largest robust coefficient of variation of the medians of the cell's slices."""
    max_drift: float = Field(0.05, gt=0)
    """Largest relative change of the slices' medians from first to last, along a significant trend."""
    max_clock_change: float = Field(0.1, gt=0)
    """Largest range of the clocks over the slices without the outer tenths, relative to their median."""
    max_temperature_rise_c: float = Field(20.0, gt=0)
    """Largest rise of the temperature after the first slice, in degrees."""


class Arrivals(Section):
    """Open-loop requests at each ``ok`` cell, after its closed loop. In YAML also just the rates."""

    rates: list[float] | Literal["auto"] = "auto"
    """Requests per second, each of one batch; ``auto`` is 50, 70, 80, 90 and 95 % of the throughput of the closed loop."""
    process: Process = "poisson"
    """Distribution: ``poisson`` as of independent callers, ``uniform`` at equal distances."""
    seconds: float = Field(10.0, gt=0)
    """Duration of each rate; longer if it has fewer than 100 requests."""
    max_p99_ms: float | None = Field(None, gt=0)
    """Search for the highest rate whose 99th percentile of the latency is within this; unset does not."""
    max_requests: int = Field(20000, ge=FEWEST_ARRIVALS)
    """Largest number of requests of a rate; a higher rate is shortened."""
    max_seconds: float = Field(300.0, gt=0)
    """Limit of all rates of a cell; the rest is not offered, with a remark."""

    @field_validator("rates", mode="before")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        rates = [value] if _number(value) else value
        if rates == "auto" or (isinstance(rates, list) and rates and all(_number(rate) and rate > 0 for rate in rates)):
            return rates
        raise ValueError(
            f"expected requests per second above 0, one or a list of them, or 'auto', found {shortened(value)}"
        )

    @staticmethod
    def from_rates(value: Any) -> Any:
        """Accept the short form: the rates alone."""
        return {"rates": value} if isinstance(value, str | list) or _number(value) else value

    def rates_for(self, throughput: float) -> list[float]:
        """The rates to offer, ascending; ``throughput`` is that of the closed loop, in requests per second."""
        if self.rates == "auto":
            return [fraction * throughput for fraction in AUTO_FRACTIONS]
        return sorted(set(self.rates))

    def window_s(self, rate: float) -> float:
        """Duration of a rate."""
        return min(max(self.seconds, FEWEST_ARRIVALS / rate), self.max_requests / rate)

    def estimate_s(self, call_s: float) -> float:
        """Estimate the seconds at an engine with this call time."""
        windows = [self.window_s(rate) for rate in self.rates_for(1 / call_s)]
        tried = sum(windows) + (0.0 if self.max_p99_ms is None else TYPICAL_SEARCH * max(windows))
        return min(tried, self.max_seconds)


class Limits(Section):
    """Time limits in seconds. Results up to a limit are recorded."""

    prepare_seconds: float = Field(1800, gt=0)
    """Building, exporting and running a workload with the baseline once."""
    compile_seconds: float = Field(1800, gt=0)
    """One compilation; beyond it the verdict is ``timeout``."""
    search_seconds: float = Field(172800, gt=0)
    """Extra time for a compilation that searches by measuring, such as tuned TVM, beyond ``compile_seconds``."""
    load_seconds: float = Field(600, gt=0)
    """Loading an engine, with its first inference."""
    verify_seconds: float = Field(8, gt=0)
    """Comparing one engine with the baseline on inputs other than the timed ones. If one inference would take longer,
    only the timed ones are compared, with a remark."""
    cell_seconds: float = Field(120, gt=0)
    """Timed seconds of one cell, including reloads of its engine with ``repetitions: auto``. The cell keeps the
    repetitions so far."""
    slice_seconds: float = Field(5, gt=0)
    """Timed seconds of one slice; a slice always has at least one repetition."""
    reload_seconds: float = Field(5, ge=0)
    """Loading an engine in a fresh process before a round, with its first inferences and without imports. One that
    takes longer stays in one process for all rounds; with 0 all do."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def count(value: Any, what: str, most: int, *words: str) -> Any:
    """Parse a number from 1 to ``most``, or one of the words."""
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _MOST_DIGITS else value
    if number in words or (isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= most):
        return number
    if isinstance(number, int) and number > most:
        raise ValueError(f"expected at most {most} {what}, found {shortened(value)}")
    *others, last = [f"a number of {what} from 1 on", *map(repr, words)]
    raise ValueError(f"expected {', '.join(others)} or {last}, found {shortened(value)}")


def listed(value: Any) -> Any:
    """Wrap a single value in a list."""
    return [value] if isinstance(value, str | int) else value


def optional_duration(value: Any) -> Any:
    """Parse a duration in seconds, or nothing."""
    return None if value is None else duration_s(value)


def distinct(values: list[Any], kind: str, key: Any) -> list[Any]:
    """Refuse a value that is listed twice."""
    seen: set[str] = set()
    for value in values:
        name = key(value)
        if name in seen:
            raise ValueError(f"{kind} {shortened(name)} is listed twice")
        seen.add(name)
    return values
