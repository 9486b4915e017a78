"""What a journal says, folded into one object: the study, its lanes, their engines and cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.spec import BatchSize
from mlflow_ngraph.engines.manifest import Bytes, Compiled, Maker
from mlflow_ngraph.execute.journal import cell_id
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.study import recorded_baseline
from mlflow_ngraph.verdicts import Verdict

Name = Annotated[str, Field(min_length=1, max_length=20_000)]


@dataclass(frozen=True)
class Lane:
    """One workload x compiler with flags x precision: what one process measures."""

    id: str
    """Digest of everything below; equal lanes of different studies have equal ids."""
    workload: str
    """Canonical reference, such as ``timm:resnet18``."""
    label: str
    """Short name of the workload."""
    family: str
    compiler: str
    compiler_label: str
    """The compiler's name with the flags that were given."""
    flags: Mapping[str, FlagValue]
    """Every flag that was asked for, defaults included."""
    precision: str
    mode: str
    threads: int | None
    """None: each runtime's own default."""
    device: str
    batch_sizes: tuple[int, ...]
    transfers: str = "outside"
    """Whether a repetition on a GPU contains the copies between host and device."""

    def cell(self, batch: int) -> str:
        """The id of the cell at a batch size."""
        return cell_id(self.id, batch)


class EngineRecord(Compiled):
    """An engine of a study on disk, as the event ``engine_built`` of the journal has it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: Name
    lane: Name
    batch_sizes: tuple[BatchSize, ...] = Field(min_length=1, strict=False)
    """The batch sizes that the engine serves."""
    directory: Name
    """Relative to the study directory."""
    size_bytes: Bytes
    files: dict[str, str]
    """sha256 of every file, by path relative to ``directory``."""
    flags: dict[str, FlagValue]
    """Values that took effect at compile time."""
    requires: dict[str, str]
    at: float
    """Unix seconds: when it was compiled, or taken from the cache."""
    reused: Maker | None = None
    """Who really compiled it, if this study did not. Its ``stages`` are those of that compilation."""


@dataclass
class CellRecord:
    """One point of a study."""

    id: str
    lane: str
    batch: int
    verdict: Verdict
    reason: str = ""
    noise: str = ""
    """What disturbed the machine while the cell was measured; empty where it was quiet enough."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment that it was measured in, those that may make one runtime faster or slower."""
    stderr_tail: str = ""
    engine: str | None = None
    precision_in_force: str | None = None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Every flag with the value in force."""
    parity: Parity | None = None
    """The worst over all inputs that were tried."""
    verified: Mapping[str, Any] = field(default_factory=dict)
    """How the engine was compared with the baseline before it was timed: the fields of
    `mlflow_ngraph.execute.verifying.Verification`."""
    finished_at: float = 0.0
    """Unix seconds."""
    ready: Mapping[str, float] = field(default_factory=dict)
    """``load_s``, ``first_inference_s`` and ``requests`` (inferences in flight within one repetition)."""
    warm_up: Mapping[str, float] = field(default_factory=dict)
    """``repetitions``, ``seconds``, ``steady``, ``call_s`` and ``fastest_s`` of the warm-up."""
    arrivals: list[dict[str, Any]] = field(default_factory=list)
    """What became of requests that arrived by themselves, rate by rate: ``rate``, ``window_s``, ``process``, ``purpose``
    (``rate`` of the study, or ``search``), ``step``, ``servers``, and of each request ``due_ns``, ``waited_ns`` and
    ``served_ns``; beside them what a slice says of the machine."""
    arrivals_note: str | None = None
    """What a reader should know of them; None where they were not measured to the end."""
    serving: list[dict[str, Any]] = field(default_factory=list)
    """The figures of each rate, derived from ``arrivals``; see `mlflow_ngraph.measure.open_loop_figures.row`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """By the names in docs/reference/metrics.md, such as ``throughput`` and ``throughput_ci_low``."""
    unsteady: tuple[str, ...] = ()
    """The metrics of the cell that noise touches: its own or, where batch sizes are compared, that at batch size 1."""
    left: Mapping[str, Any] = field(default_factory=dict)
    """Where the cell left a race: the ``round`` in which it did, after ``rounds`` of its own; the ``rival`` (a cell) with the
    rounds ``shared`` and the ``ratio`` to it as estimated, and the ``bound`` of what it is beside the best one, at most; or the
    ``limit`` that it cannot keep."""
    log_medians: dict[str, float] = field(default_factory=dict)
    """The natural logarithm of the median duration of each round, in nanoseconds a sample, by session, round and batch
    size such as ``0.3@8``, in a race without the batch size: what lanes that share rounds are compared by. The baseline has those beside cells of other sessions, too."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """The slices, each with ``session``, ``round``, ``position`` (the lane's turn within the round), ``started_ns``,
    ``wall_s``, ``peak_bytes`` and ``durations_ns``. Newer journals have besides: ``loading``
    (how many fresh processes had been started for it before), ``page_faults``, ``resident_bytes``, ``harness_cpu_s`` and
    ``harness_wall_s`` (of the parent while it waits for the slice), and ``machine`` with the fields of
    `mlflow_ngraph.devices.sensors.Change`: what was seen while the machine was watched around the slice."""

    @property
    def remarks(self) -> str:
        """What a reader should know of it, in words: why it is not ``ok``, what disturbed the machine, and what was set."""
        noise = f"absolute figures are unsteady: {self.noise}" if self.noise else ""
        within = f"measured with {self.environment}" if self.environment else ""
        return "; ".join(filter(None, (self.reason, noise, within)))

    @property
    def environment(self) -> str:
        """Its ``variables`` as a shell writes them."""
        return " ".join(f"{name}={value}" for name, value in self.variables.items())

    @property
    def retryable(self) -> bool:
        """Whether measuring it again can end differently."""
        return self.verdict.retryable or bool(self.noise)


@dataclass
class LaneRecord:
    """A lane with what became of it."""

    lane: Lane
    engines: list[EngineRecord] = field(default_factory=list)
    cells: dict[int, CellRecord] = field(default_factory=dict)
    """By batch size; a cell that has no verdict yet is missing."""
    started_at: float = 0.0
    finished_at: float = 0.0
    overhead_s: float | None = None
    """Seconds of the lane that were neither export, compilation, verification, loading, warm-up nor timing."""
    unexplained: str = ""
    """Why the compiler could not explain an engine."""

    def engine_of(self, cell: CellRecord) -> EngineRecord | None:
        """The engine that a cell of this lane was measured with; None where none was built."""
        return next((engine for engine in self.engines if engine.id == cell.engine), None)

    def engine_at(self, batch: int) -> EngineRecord | None:
        """The engine that was last built for a batch size, whether a cell was measured with it or not."""
        return next((engine for engine in reversed(self.engines) if batch in engine.batch_sizes), None)

    def flags_in_force(self, batch: int) -> dict[str, FlagValue]:
        """Every flag at a batch size: what was asked for, unless compiling or loading the engine made something else of it."""
        cell = self.cells.get(batch)
        engine = (self.engine_of(cell) if cell is not None else None) or self.engine_at(batch)
        return {
            **self.lane.flags,
            **(engine.flags if engine is not None else {}),
            **(cell.flags if cell is not None else {}),
        }

    def flags_of(self, engine: EngineRecord) -> dict[str, FlagValue]:
        """Every flag with the value in force in an engine; that at the largest batch size where they differ."""
        return {name: value for batch in engine.batch_sizes for name, value in self.flags_in_force(batch).items()}

    def precision_of(self, engine: EngineRecord) -> str | None:
        """The precision that an engine computes in; None where it was never loaded."""
        known = (self.cells[batch].precision_in_force for batch in engine.batch_sizes if batch in self.cells)
        return next(filter(None, known), None)

    @property
    def complete(self) -> bool:
        """Whether every cell has a verdict."""
        return set(self.cells) == set(self.lane.batch_sizes)


@dataclass
class StudyRecord:
    """A study with all its lanes."""

    id: str
    name: str
    device: str
    study: Mapping[str, Any]
    """The study as `Study.model_dump` gives it."""
    fingerprint: Mapping[str, Any]
    versions: Mapping[str, str]
    started_at: float
    finished_at: float | None
    lanes: dict[str, LaneRecord]
    workloads: dict[str, Mapping[str, Any]]
    """The materials of each workload by canonical reference: ``info`` has the fields of `WorkloadInfo`, beside it are
    the ``digest`` of the model, its ``outputs`` and its exports."""
    sessions: int = 0
    """How often it was begun or gone on with."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the environment in which it was last gone on with that may make one runtime faster or slower."""
    races: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """How the race of a workload ended, by canonical reference: ``ending`` (``won``, ``alike``, ``repetitions``, ``time``,
    ``memory``), ``leader`` (a cell, or None) and ``contenders``, the leader first, each with ``cell``, ``lane``, ``batch``, ``rounds`` and,
    beside the leader, ``ratio``, ``low`` and ``high``."""
    left_out: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Cells that were not measured, by id, each with ``lane``, ``batch``, ``reason`` and ``final``: whether there is nothing to
    be gained by measuring it."""

    @property
    def baseline(self) -> str:
        """The label of the compiler that ratios refer to."""
        return recorded_baseline(self.study)

    def reference_by(self, workload: str) -> str | None:
        """What computed the outputs that the engines of a workload were compared with; None where it was never prepared."""
        said = self.workloads.get(workload, {}).get("reference_by")
        return said if isinstance(said, str) and said else None

    def so_far(self) -> StudyRecord:
        """The record as it is now: what is read from now on changes this one, and not the copy."""
        lanes = {lane_id: replace(lane, cells=dict(lane.cells)) for lane_id, lane in self.lanes.items()}
        return replace(
            self,
            lanes=lanes,
            workloads=dict(self.workloads),
            races=dict(self.races),
            left_out=dict(self.left_out),
        )
