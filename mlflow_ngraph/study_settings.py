"""Sections of a study: how long to warm up and to measure, when to stop, and what counts as disturbed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mlflow_ngraph.text import shortened

Process = Literal["poisson", "uniform"]
"""How arriving requests are spread."""
AUTO_FRACTIONS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Of the throughput of the closed loop: the rates of ``arrivals: auto``."""
FEWEST_ARRIVALS = 100
"""Of a rate: one request is then expected beyond the 99th percentile."""
TYPICAL_SEARCH = 5
"""Rates that the search for the highest one tries."""


class Section(BaseModel):
    """A mapping of a study, which has no other keys than those that are declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WarmUp(Section):
    """When the warm-up of a cell ends: the medians of two neighbouring windows agree, or a bound is reached."""

    window: int = Field(5, ge=2)
    """Repetitions in a window."""
    tolerance: float = Field(0.05, gt=0, lt=1)
    """Largest relative difference between the medians of two neighbouring windows that counts as steady."""
    max_seconds: float = Field(3.0, gt=0)
    """Stop warming up after this many seconds, and say that it was not steady."""


class Adaptive(Section):
    """When a cell has repetitions enough, where ``repetitions`` is ``auto``."""

    within: float = Field(0.01, gt=0, lt=1)
    """Wanted reach of the 95 % interval of the throughput, as a share of it: 0.01 is ± 1 %."""
    min_rounds: int = Field(8, ge=2)
    """Rounds before the interval is looked at: of fewer it says little about itself."""
    max_repetitions: int = Field(200, ge=1)
    """Stop after this many repetitions, and say how far the interval reaches."""


class Stability(Section):
    """When the machine counts as not quiet, and the absolute figures of a cell as unsteady."""

    max_foreign_cpu_percent: float = Field(10.0, ge=0)
    """Largest share of the whole machine that other processes may use while the cell is timed."""
    max_spread: float = Field(0.1, gt=0)
    """Largest robust coefficient of variation of the medians of the cell's slices."""
    max_drift: float = Field(0.05, gt=0)
    """Largest relative change of the slices' medians from the first slice to the last, where chance does not explain it."""
    max_clock_change: float = Field(0.1, gt=0)
    """Largest range of the clocks over the slices, relative to their median, but for the outer tenths."""
    max_temperature_rise_c: float = Field(20.0, gt=0)
    """Largest rise of the temperature over that after the first slice, in degrees."""


class Arrivals(Section):
    """Requests that arrive by themselves at each ``ok`` cell, beside its closed loop. In YAML also just the rates."""

    rates: list[float] | Literal["auto"] = "auto"
    """Requests per second, each of one batch; ``auto`` is 50, 70, 80, 90 and 95 % of the throughput of the closed loop."""
    process: Process = "poisson"
    """How they are spread: ``poisson`` as independent callers come, ``uniform`` at equal distances."""
    seconds: float = Field(10.0, gt=0)
    """How long each rate lasts; longer where fewer than 100 requests would come."""
    max_p99_ms: float | None = Field(None, gt=0)
    """Look for the highest rate whose 99th percentile of the latency is within this; unset looks for none."""
    max_requests: int = Field(20000, ge=FEWEST_ARRIVALS)
    """Requests of a rate at most; a higher rate lasts shorter for them."""
    max_seconds: float = Field(300.0, gt=0)
    """All rates of a cell together; what does not fit is not offered, and said."""

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
        """The rates to offer, ascending.

        Parameters
        ----------
        throughput : float
            Requests per second in the closed loop.
        """
        if self.rates == "auto":
            return [fraction * throughput for fraction in AUTO_FRACTIONS]
        return sorted(set(self.rates))

    def window_s(self, rate: float) -> float:
        """How long a rate lasts."""
        return min(max(self.seconds, FEWEST_ARRIVALS / rate), self.max_requests / rate)

    def estimate_s(self, call_s: float) -> float:
        """Rough seconds at an engine whose call takes ``call_s``."""
        windows = [self.window_s(rate) for rate in self.rates_for(1 / call_s)]
        tried = sum(windows) + (0.0 if self.max_p99_ms is None else TYPICAL_SEARCH * max(windows))
        return min(tried, self.max_seconds)


class Limits(Section):
    """Bounds in seconds; what they cut short is recorded with what was reached."""

    prepare_seconds: float = Field(1800, gt=0)
    """Building, exporting and running a workload with the baseline once."""
    compile_seconds: float = Field(1800, gt=0)
    """One compilation; beyond it the verdict is ``timeout``."""
    search_seconds: float = Field(172800, gt=0)
    """What a compilation that searches by measuring, such as tuned TVM, may take beyond ``compile_seconds``."""
    load_seconds: float = Field(600, gt=0)
    """Loading an engine, with its first inference."""
    verify_seconds: float = Field(8, gt=0)
    """Comparing one engine with the baseline on other inputs than those it is timed on. Where one
    inference would take longer, the cell says that it was compared on the timed ones alone."""
    cell_seconds: float = Field(120, gt=0)
    """Timed seconds of one cell, with ``repetitions: auto`` those of loading its engine again too; beyond it the cell
    keeps the repetitions that it reached."""
    slice_seconds: float = Field(5, gt=0)
    """Timed seconds of one slice; a slice always has at least one repetition."""
    reload_seconds: float = Field(5, ge=0)
    """Loading an engine in a fresh process before a round, its first inferences included, imports not. One that takes
    longer stays in one process for all rounds; with 0 all do."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
