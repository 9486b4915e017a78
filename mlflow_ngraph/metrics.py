"""Metrics of a cell with their units and meanings, and the columns of the results table.

The one place that names them. docs/reference/metrics.md explains them, docs/explanation/intervals.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]
Interval = Literal["none", "own", "complement", "reciprocal"]
"""Source of a metric's confidence interval: none; its own; the one of ``1 - metric``; or that of the
metric which it is an exact number divided by."""
LOW, HIGH = "_ci_low", "_ci_high"
"""After the name of a metric: the ends of its 95 % interval."""
ROUNDS, NOISE, UNSTEADY, VARIABLES, BEATEN_BY = "log_medians", "noise", "unsteady", "variables", "beaten_by"
"""Columns of a cell: its rounds, what disturbed the machine, and the names of its figures that this touches."""
FOREIGN, LOADED_PERCENT = "foreign_cpu_percent", 25.0
"""Use of the machine by others from which ratios within rounds are affected too: it slows lanes unequally."""
TOUCHED = f"speed-ups, too, where others used {LOADED_PERCENT:g} % of the machine or more: eager execution suffers most, so they are rather too large"
"""Descriptions of marked figures."""
PROFILE = "profile"
"""Column of results that were read: the device as it was recorded, where ``device`` names the machine."""
BASELINE_COLUMN, EAGER = "baseline", "identity"
"""Column of a cell: the label of the compiler that its ratios refer to; and what this is in tables that do not say it."""
LOG_ERROR, FREEDOM = "_log_se", "_df"
"""After the name of a metric: the standard error of its logarithm (of a complement: of the logarithm of ``1 - metric``), and
the degrees of freedom of that error. What is known exactly has the error 0 and no degrees of freedom."""


@dataclass(frozen=True)
class Metric:
    """A number of a cell."""

    name: str
    unit: str
    better: Better
    meaning: str
    interval: Interval = "none"
    of: str = ""
    """The metric that it is the reciprocal of."""
    absolute: bool = False
    """True if disturbances of the machine affect it. Most of it is not in a ratio to what was measured in the same rounds."""
    of_baseline: bool = False
    """True if it is a ratio to the lane that the column ``baseline`` names."""
    by_round: int = 0
    """1 where its ratio follows from the durations of shared rounds as that of a speed does, -1 as that of a duration does."""

    @property
    def estimated(self) -> bool:
        """True if tables have an interval, and with it the error."""
        return self.interval in ("own", "complement")

    @property
    def ends(self) -> tuple[str, str]:
        """Column names of the ends of the metric's own interval."""
        return self.name + LOW, self.name + HIGH


def uneven_load(percent: float) -> float:
    """Share of the machine that others took, where it may slow lanes unequally; else 0."""
    return percent / 100 if percent >= LOADED_PERCENT else 0.0


def with_estimates(names: Iterable[str]) -> list[str]:
    """Column names of metrics, each followed by the columns of its uncertainty."""
    wanted = list(names)
    sources = [source for name in wanted for source in dict.fromkeys((name, reciprocal_of(name)))]
    known = [METRICS[name] for name in wanted if name in METRICS]
    rounds = [ROUNDS] if any(metric.by_round for metric in known) else []
    baselines = [BASELINE_COLUMN] if any(metric.of_baseline for metric in known) else []
    return [
        *(name + end for name in dict.fromkeys(sources) for end in ("", LOW, HIGH, LOG_ERROR, FREEDOM)),
        *rounds,
        *baselines,
        UNSTEADY,
        NOISE,
        VARIABLES,
    ]


def reciprocal_of(name: str) -> str:
    """The metric whose error a metric uses: its reciprocal, or itself."""
    return METRICS[name].of or name if name in METRICS else name


def metric_title(metric: str, baseline: str | None) -> str:
    """Title of a metric, with the baseline that it refers to."""
    return metric if baseline is None else f"{metric} over {baseline}"


def baseline_phrase(baseline: str) -> str:
    """Name of a baseline within a sentence."""
    return "eager execution" if baseline == EAGER else baseline


def is_complement(name: str) -> bool:
    """True if errors are those of the logarithm of ``1 - metric``."""
    return name in METRICS and METRICS[name].interval == "complement"


def is_uncertainty(name: str) -> bool:
    """True if a column holds the uncertainty of a metric."""
    return name.endswith((LOW, HIGH, LOG_ERROR, FREEDOM))


_METRICS = [
    Metric(
        "throughput",
        "samples/s",
        "higher",
        "batch * requests / trimmed mean of the median durations of rounds",
        interval="own",
        absolute=True,
        by_round=1,
    ),
    Metric("throughput_mean", "samples/s", "higher", "batch * requests / mean duration", interval="own", absolute=True),
    Metric("throughput_std", "samples/s", "lower", "standard deviation over repetitions", absolute=True),
    Metric(
        "latency_mean_ms",
        "ms",
        "lower",
        "mean duration of a repetition",
        interval="reciprocal",
        of="throughput_mean",
        absolute=True,
    ),
    Metric("latency_std_ms", "ms", "lower", "standard deviation of the duration", absolute=True),
    Metric("latency_p50_ms", "ms", "lower", "median duration", interval="own", absolute=True, by_round=-1),
    Metric("latency_p90_ms", "ms", "lower", "90th percentile of the duration", absolute=True),
    Metric("latency_p99_ms", "ms", "lower", "99th percentile of the duration", absolute=True),
    Metric("cpu_percent", "%", "lower", "CPU use while watched, of the whole machine", absolute=True),
    Metric("cpu_percent_std", "%", "lower", "standard deviation of the CPU use over slices", absolute=True),
    Metric(
        "cpu_percent_of_threads", "%", "lower", "CPU use while watched, of the processors of the lane", absolute=True
    ),
    Metric("cpu_percent_busiest_core", "%", "neither", "use of the busiest processor while watched, by anything"),
    Metric("cpu_cores", "1", "lower", "processors that the lane's process kept busy while watched", absolute=True),
    Metric(FOREIGN, "%", "lower", "CPU use of other processes while watched, of the machine"),
    Metric("harness_cpu_percent", "%", "lower", "CPU use of the parent while it waits for slices, of one processor"),
    Metric(
        "cpu_reduction", "1", "higher", "1 - CPU use / CPU use of the baseline", interval="complement", of_baseline=True
    ),
    Metric("peak_memory_mb", "MB", "lower", "largest resident memory of the lane's process"),
    Metric("page_faults_per_sample", "1", "lower", "pages of memory that the kernel had to give the lane's process"),
    Metric("steady_memory_mb", "MB", "lower", "resident memory of the lane's process after a slice, median"),
    Metric(
        "energy_per_sample_j", "J", "lower", "energy by all meters of the time of the slices / samples", absolute=True
    ),
    Metric("power_w", "W", "lower", "energy by all meters while watched / seconds", absolute=True),
    Metric("clock_mhz", "MHz", "neither", "clock of what computes, mean over slices"),
    Metric("temperature_c", "°C", "lower", "temperature of what computes, largest over slices"),
    Metric("engine_size_mb", "MB", "lower", "size of the engine's files"),
    Metric("export_s", "s", "lower", "exporting the workload to the compiler's format"),
    Metric("convert_s", "s", "lower", "converting the export to the compiler's representation"),
    Metric("tune_s", "s", "lower", "searching for fast kernels by measuring them"),
    Metric("compile_s", "s", "lower", "compiling"),
    Metric("save_s", "s", "lower", "writing the engine"),
    Metric("compile_total_s", "s", "lower", "export + convert + tune + compile + save"),
    Metric("built_beside", "1", "neither", "most others that were prepared or compiled at the same time"),
    Metric("load_s", "s", "lower", "loading the engine in a fresh process"),
    Metric("first_inference_s", "s", "lower", "the first inference after loading"),
    Metric("repetitions", "1", "neither", "timed repetitions reached"),
    Metric("rounds", "1", "neither", "slices that the repetitions were taken in"),
    Metric("warmup_repetitions", "1", "neither", "repetitions before timing"),
    Metric("parity_max_abs", "1", "lower", "largest absolute error against identity in fp32"),
    Metric("parity_max_rel", "1", "lower", "largest absolute error / largest absolute reference value"),
    Metric("parity_cosine", "1", "higher", "smallest cosine similarity over samples"),
    Metric("parity_top1", "1", "higher", "share of samples whose largest output is at the same place"),
    Metric("parity_inputs", "1", "neither", "inputs that the engine's outputs were compared for"),
    Metric("verify_s", "s", "lower", "verifying the engine on them, before anything was timed"),
    Metric(
        "speedup",
        "1",
        "higher",
        "throughput / throughput of the baseline, same batch",
        interval="own",
        of_baseline=True,
        by_round=1,
    ),
    Metric("rtr", "1", "higher", "throughput / throughput at batch 1", interval="own", absolute=True),
    Metric("ase", "1", "higher", "throughput / (batch * throughput at batch 1)", interval="own", absolute=True),
    Metric("bsr", "1", "higher", "ASE / ASE of the baseline, same batch", interval="own", of_baseline=True),
    Metric("serve_max_rate", "requests/s", "higher", "highest rate of arrivals whose p99 kept the bound"),
    Metric("serve_max_rate_p99_ms", "ms", "lower", "99th percentile of the latency at serve_max_rate"),
    Metric("serve_peak_rate", "requests/s", "higher", "highest rate of arrivals without overload"),
    Metric("serve_peak_p99_ms", "ms", "lower", "99th percentile of the latency at serve_peak_rate"),
    Metric("serve_peak_p999_ms", "ms", "lower", "99.9th percentile of the latency at serve_peak_rate"),
]
METRICS: dict[str, Metric] = {metric.name: metric for metric in _METRICS}
"""The metrics of a cell by name."""


def _ends(metric: Metric) -> list[Metric]:
    return [
        Metric(name, metric.unit, metric.better, f"{side} end of the 95 % interval")
        for name, side in zip(metric.ends, ("lower", "upper"), strict=True)
    ]


CELL_METRICS: dict[str, Metric] = {
    column.name: column for metric in _METRICS for column in [metric, *(_ends(metric) if metric.estimated else ())]
}
"""The metrics of a cell and the ends of their intervals, by name: what MLflow gets."""
ESTIMATES = tuple(name + end for name, metric in METRICS.items() if metric.estimated for end in (LOG_ERROR, FREEDOM))
"""Columns with the errors and degrees of freedom that other figures are compared by."""

TEXT_COLUMNS = (
    "study_id",
    "study",
    "device",
    "fingerprint",
    "processor",
    "workload",
    "content",
    "label",
    "family",
    "compiler",
    "compiler_label",
    "flags",
    "precision",
    "precision_in_force",
    "mode",
    BASELINE_COLUMN,
    "reference_by",
    "verdict",
    "reason",
    NOISE,
    UNSTEADY,
    VARIABLES,
    BEATEN_BY,
    "engine",
    "engine_reused",
    "lane",
    "cell",
    "run_id",
    "lane_run_id",
    "model_id",
    "custom_metrics",
    ROUNDS,
)
"""``baseline`` is the label of the compiler that ``speedup`` and other ratios refer to, ``reference_by``
what computed the outputs that engines were compared with. ``content`` is the digest of the model's weights, graph and code;
models of one name with different ones are different models. ``flags`` is JSON: every flag with the value in force. ``engine_reused`` is the study that compiled the engine, where
it was another one. ``custom_metrics`` is JSON: formula, unit and what is better of each metric that the study declares.
``log_medians`` is JSON: the natural logarithm of the median duration of each round, in nanoseconds a sample, by session,
round and batch size, such as ``{"0.3@8": 14.2}``; in a race without the batch size, because all of them share its rounds. ``noise`` says what disturbed the machine while the cell was measured, and ``unsteady`` names,
with commas between them, the figures of the cell that it touches. ``variables`` are those of the environment that may make one runtime faster or slower. ``beaten_by`` is the cell because of which this one left a race. What does not apply is missing (NaN)."""
MODEL_COLUMNS = ("parameters", "paper_macs", "true_macs")
"""Facts of the model."""
INTEGER_COLUMNS = ("threads", "batch", *MODEL_COLUMNS)
TIME_COLUMNS = ("started_at", "finished_at")
"""Unix seconds: the start of the study, the end of the cell."""
COLUMNS = (*TEXT_COLUMNS, *INTEGER_COLUMNS, *TIME_COLUMNS, *CELL_METRICS, *ESTIMATES)
"""Columns that a table of results always has; metrics that a study declares follow them."""
RUN_COLUMNS = ("tracking_uri", "experiment", "git_commit", "user")
"""Columns that say where a row was read; they come from the run and stand last."""
TABLE = (*COLUMNS, *RUN_COLUMNS, PROFILE)
"""The documented columns of a table that was read from servers; no metric of a study may have one of these names."""
