"""Records of a study, its lanes, engines and cells, as replayed from the journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict, Field

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.spec import BatchSize
from mlflow_ngraph.engines.manifest import Bytes, Compiled, Maker
from mlflow_ngraph.execute.answers import Name, Seconds
from mlflow_ngraph.execute.journal import cell_id
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.study import recorded_baseline
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import DRAWN


@dataclass(frozen=True)
class Lane:
    """A workload, compiler with flags, and precision, measured by one process."""

    id: str
    """Digest of all fields below; equal lanes of different studies have equal ids."""
    workload: str
    """Canonical reference, such as ``timm:resnet18``."""
    label: str
    family: str
    compiler: str
    compiler_label: str
    """The compiler's name with the given flags."""
    flags: Mapping[str, FlagValue]
    """All flags, defaults included."""
    precision: str
    mode: str
    threads: int | None
    """None is each runtime's default."""
    device: str
    batch_sizes: tuple[int, ...]
    transfers: str = "outside"
    """``inside`` when a repetition on a GPU includes the copies between host and device."""

    def cell(self, batch: int) -> str:
        """Id of the cell at a batch size."""
        return cell_id(self.id, batch)


class EngineRecord(Compiled):
    """An engine on disk, as in the event ``engine_built``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: Name
    lane: Name
    batch_sizes: tuple[BatchSize, ...] = Field(min_length=1, strict=False)
    directory: Name
    """Relative to the study directory."""
    size_bytes: Bytes
    files: dict[str, str]
    """sha256 of every file, by path relative to ``directory``."""
    flags: dict[str, FlagValue]
    """Effective values at compile time."""
    requires: dict[str, str]
    at: float
    """Unix seconds of the compilation, or of taking it from the cache."""
    reused: Maker | None = None
    """The study that compiled it, if another one did. ``stages`` are those of that compilation."""
    stopped_s: list[Seconds] = Field(default_factory=list)
    """How long a process stood still while it exported or compiled: ``stages`` are then unknown."""


@dataclass
class CellRecord:
    """One cell of a study with its slices and figures."""

    id: str
    lane: str
    batch: int
    verdict: Verdict
    reason: str = ""
    noise: str = ""
    """Disturbances of the machine during the measurement; empty when it was quiet."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that may change the speed of a runtime."""
    stderr_tail: str = ""
    engine: str | None = None
    precision_in_force: str | None = None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Effective flags."""
    parity: Parity | None = None
    """The worst over all inputs."""
    verified: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `mlflow_ngraph.execute.verifying.Verification`."""
    finished_at: float = 0.0
    """Unix seconds."""
    ready: Mapping[str, float] = field(default_factory=dict)
    """``load_s``, ``first_inference_s`` and ``requests`` (inferences in flight within one repetition)."""
    warm_up: Mapping[str, float] = field(default_factory=dict)
    """``repetitions``, ``seconds``, ``steady``, ``call_s`` and ``fastest_s`` of the warm-up."""
    arrivals: list[dict[str, Any]] = field(default_factory=list)
    """Open-loop results per rate: ``rate``, ``window_s``, ``process``, ``purpose`` (``rate`` of the study, or
    ``search``), ``step``, ``servers``, and per request ``due_ns``, ``waited_ns`` and ``served_ns``; also the machine
    fields of a slice."""
    arrivals_note: str | None = None
    """Remarks about them; None where they were not measured to the end."""
    serving: list[dict[str, Any]] = field(default_factory=list)
    """Figures of each rate, derived from ``arrivals``; see `mlflow_ngraph.measure.open_loop_figures.row`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Keyed by the names in docs/reference/metrics.md, such as ``throughput`` and ``throughput_ci_low``."""
    unsteady: tuple[str, ...] = ()
    """Metrics affected by noise, of the cell or of batch size 1 where it is compared with that."""
    left: Mapping[str, Any] = field(default_factory=dict)
    """Departure from a race: the ``round``, after ``rounds`` of its own; the ``rival`` (a cell) with ``shared`` rounds,
    the estimated ``ratio`` to it and the upper ``bound`` relative to the best; or the ``limit`` that it cannot keep."""
    log_medians: dict[str, float] = field(default_factory=dict)
    """Natural logarithm of the median duration of each round, in nanoseconds a sample, by session, round and batch size
    such as ``0.3@8``; in a race without the batch size. Lanes are compared by shared rounds. The baseline also has
    those beside cells of other sessions."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Slices, each with ``session``, ``round``, ``position`` (its turn within the round), ``started_ns``, ``wall_s``,
    ``peak_bytes`` and ``durations_ns``. Newer journals add ``loading`` (number of fresh processes before it),
    ``page_faults``, ``resident_bytes``, ``harness_cpu_s`` and ``harness_wall_s`` (of the waiting parent), and
    ``machine`` with the fields of `mlflow_ngraph.devices.sensors.Change`."""

    @property
    def remarks(self) -> str:
        """Remarks for readers: the reason, disturbances and environment variables."""
        noise = f"absolute figures are unsteady: {self.noise}" if self.noise else ""
        within = f"measured with {self.environment}" if self.environment else ""
        return "; ".join(filter(None, (self.reason, noise, within)))

    @property
    def environment(self) -> str:
        """Its ``variables`` in shell syntax."""
        return " ".join(f"{name}={value}" for name, value in self.variables.items())

    @property
    def retryable(self) -> bool:
        """Return True when measuring it again may end differently."""
        return self.verdict.retryable or bool(self.noise)


@dataclass
class LaneRecord:
    """A lane with its engines and cells."""

    lane: Lane
    engines: list[EngineRecord] = field(default_factory=list)
    cells: dict[int, CellRecord] = field(default_factory=dict)
    """By batch size; cells without a verdict are missing."""
    started_at: float = 0.0
    finished_at: float = 0.0
    overhead_s: float | None = None
    """Seconds outside export, compilation, verification, loading, warm-up and timing."""
    unexplained: str = ""
    """Reason why the compiler could not explain an engine."""
    runs: tuple[str, ...] = field(default=(), repr=False)
    """Lane runs that it was recorded as, on any server; the last one last."""
    models: Mapping[str, str] = field(default_factory=dict, repr=False)
    """LoggedModels that its engines were recorded as last, by engine."""

    def engine_of(self, cell: CellRecord) -> EngineRecord | None:
        """The engine that a cell was measured with, or None."""
        return next((engine for engine in self.engines if engine.id == cell.engine), None)

    def engine_at(self, batch: int) -> EngineRecord | None:
        """The last engine built for a batch size, measured or not."""
        return next((engine for engine in reversed(self.engines) if batch in engine.batch_sizes), None)

    def flags_in_force(self, batch: int) -> dict[str, FlagValue]:
        """Effective flags at a batch size: the given ones, updated by compilation and loading."""
        cell = self.cells.get(batch)
        engine = (self.engine_of(cell) if cell is not None else None) or self.engine_at(batch)
        return {
            **self.lane.flags,
            **(engine.flags if engine is not None else {}),
            **(cell.flags if cell is not None else {}),
        }

    def flags_of(self, engine: EngineRecord) -> dict[str, FlagValue]:
        """Effective flags of an engine; those at its largest batch size where they differ."""
        return {name: value for batch in engine.batch_sizes for name, value in self.flags_in_force(batch).items()}

    def precision_of(self, engine: EngineRecord) -> str | None:
        """Effective precision of an engine; None when it was never loaded."""
        known = (self.cells[batch].precision_in_force for batch in engine.batch_sizes if batch in self.cells)
        return next(filter(None, known), None)

    @property
    def complete(self) -> bool:
        return set(self.cells) == set(self.lane.batch_sizes)


@dataclass(frozen=True)
class Place:
    """The run that a study was recorded as."""

    experiment_id: str
    run_id: str


@dataclass
class StudyRecord:
    """A study with all its lanes."""

    id: str
    name: str
    device: str
    study: Mapping[str, Any]
    """As `Study.model_dump` gives it."""
    fingerprint: Mapping[str, Any]
    versions: Mapping[str, str]
    started_at: float
    finished_at: float | None
    lanes: dict[str, LaneRecord]
    workloads: dict[str, Mapping[str, Any]]
    """Materials of each workload by canonical reference: ``info`` with the fields of `WorkloadInfo`, the ``digest`` of
    the model, its ``outputs`` and its exports."""
    sessions: int = 0
    """Number of runs of the study."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the last session that may change the speed of a runtime."""
    races: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """End of each workload's race, by canonical reference: ``ending`` (``won``, ``alike``, ``repetitions``, ``time``,
    ``memory``), ``leader`` (a cell, or None) and ``contenders``, leader first, each with ``cell``, ``lane``, ``batch``,
    ``rounds`` and, relative to the leader, ``ratio``, ``low`` and ``high``."""
    left_out: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Cells not measured, by id, each with ``lane``, ``batch``, ``reason`` and ``final`` (nothing would be gained by
    it)."""
    recorded: Place | None = None
    """The last run that it was recorded as, on any server."""

    @property
    def baseline(self) -> str:
        """Label of the baseline compiler."""
        return recorded_baseline(self.study)

    def content(self, ref: str) -> str | None:
        """Digest of a model, None before it was prepared. Weights that the package draws are those of their seed: machines
        differ in the last bits.
        """
        if ref not in self.workloads:
            return None
        init = self.study.get("init", {})
        if ref.startswith(DRAWN) and not init.get("pretrained"):
            return hashlib.sha256(json.dumps(init, sort_keys=True).encode()).hexdigest()
        digest: str | None = self.workloads[ref].get("digest")
        return digest

    def reference_by(self, workload: str) -> str | None:
        """Source of the outputs that engines of a workload were compared with; None when it was never prepared."""
        said = self.workloads.get(workload, {}).get("reference_by")
        return said if isinstance(said, str) and said else None

    def snapshot(self) -> StudyRecord:
        """A copy of the record that later events do not change."""
        lanes = {lane_id: replace(lane, cells=dict(lane.cells)) for lane_id, lane in self.lanes.items()}
        return replace(
            self,
            lanes=lanes,
            workloads=dict(self.workloads),
            races=dict(self.races),
            left_out=dict(self.left_out),
        )
