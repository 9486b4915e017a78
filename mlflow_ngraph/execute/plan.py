"""StudyPlan: the lanes that a study and a device expand into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from mlflow_ngraph import credentials
from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.devices import processors
from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.errors import DependencyError, StudyError, WorkloadError
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.timing_history import TimingHistory
from mlflow_ngraph.study import BASELINE, Study
from mlflow_ngraph.workloads import naming
from mlflow_ngraph.workloads.base import WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.registry import create as create_workload

TYPICAL_PARAMETERS = 20_000_000
"""Assumed size of an unknown model."""
PREPARE_SECONDS = 10.0
PREPARED_COPIES = 2
"""Copies of the weights while a workload is prepared. A baseline built from files shares them."""
_PARAMETER_BYTES = 4


@dataclass(frozen=True)
class WorkloadPlan:
    """A workload with its lanes."""

    ref: WorkloadRef
    label: str
    family: str
    lanes: tuple[Lane, ...]
    known: WorkloadInfo | None
    fixed_batch: int | None = None
    batch_question: str = ""
    """Hint for other batch sizes, where no batch axis was found."""
    refused: str = ""
    """Reason why it cannot be read or built; empty otherwise."""
    file_bytes: int | None = None
    """Size of the model's files; None when it has none or was not checked."""

    @property
    def parameters(self) -> int | None:
        """Approximate number of parameters; None when unknown before building."""
        if self.file_bytes is not None:
            return self.file_bytes // _PARAMETER_BYTES
        return None if self.known is None else self.known.parameters

    @property
    def weight_bytes(self) -> int:
        """Approximate bytes of one copy of the model."""
        return _PARAMETER_BYTES * (self.parameters or TYPICAL_PARAMETERS)


@dataclass(frozen=True)
class StudyPlan:
    """A validated study with its lanes."""

    study: Study
    device: str
    accelerator: str
    threads: int | None
    workloads: tuple[WorkloadPlan, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the user before the study starts."""
    history: TimingHistory = field(default_factory=TimingHistory, compare=False)
    """Durations of earlier studies on this machine."""

    @property
    def lanes(self) -> list[Lane]:
        """All lanes, workload by workload."""
        return [lane for workload in self.workloads for lane in workload.lanes]

    @property
    def cells(self) -> int:
        return sum(len(lane.batch_sizes) for lane in self.lanes)

    @property
    def engine_bytes(self) -> int:
        """Approximate bytes of all engines, each with fp32 weights."""
        return sum(_engine_bytes(workload, lane) for workload in self.workloads for lane in workload.lanes)

    @property
    def home_bytes(self) -> int:
        """Approximate bytes that the study adds to its directory: new engines and prepared files."""
        needed = [(workload, lane) for workload in self.workloads for lane in workload.lanes if not self._has(lane)]
        # Materials are deleted after their workload.
        prepared = max((self._prepared_bytes(workload) for workload in self.workloads), default=0)
        return prepared + sum(_engine_bytes(workload, lane) for workload, lane in needed)

    @property
    def of_known_size(self) -> StudyPlan:
        """The plan restricted to workloads of known size."""
        return replace(self, workloads=tuple(known for known in self.workloads if known.parameters is not None))

    def _has(self, lane: Lane) -> bool:
        """Return True when the cache has its engines, so that they take no further space."""
        return self.study.cache != "off" and self.history.keeps(lane.workload, lane.compiler, lane.precision)

    def _prepared_bytes(self, workload: WorkloadPlan) -> int:
        """Approximate bytes of the files that compilers start from, without parts that engines share."""
        built = any(lane.compiler == BASELINE and not self._has(lane) for lane in workload.lanes)
        return 0 if built and workload.file_bytes is not None else PREPARED_COPIES * workload.weight_bytes

    def with_checked(self, found: Mapping[str, Mapping[str, object]]) -> StudyPlan:
        """Add the findings of a child process: labels, families, fixed batch sizes or refusals, by canonical reference.

        Raises `WorkloadError` if every workload is refused.
        """
        checked = _named([_checked(workload, found.get(str(workload.ref))) for workload in self.workloads])
        refused = [workload for workload in checked if workload.refused]
        if refused and len(refused) == len(checked):
            raise WorkloadError("; ".join(workload.refused for workload in refused))
        notes = [f"{workload.label} fails, the others are measured: {workload.refused}" for workload in refused]
        return replace(self, workloads=tuple(checked), notes=(*self.notes, *notes))


def make(study: Study, profile: DeviceProfile, history: TimingHistory | None = None) -> StudyPlan:
    """Expand a study into lanes.

    ``history`` has durations of earlier studies; None when no estimate is needed. Raises `UsageError` if a compiler,
    flag, workload or option does not exist, or this machine cannot serve the device or run a compiler.
    """
    threads = _threads(study, profile)
    chosen = [choice for choice in study.compilers if not (study.build_for and choice.name == BASELINE)]
    if not chosen:
        raise StudyError(f"nothing to build for {study.build_for}: {BASELINE} compiles nothing; name other compilers")
    compilers = [(choice, _usable(choice.name, choice.flags, builds=bool(study.build_for))) for choice in chosen]
    workloads: list[WorkloadPlan] = []
    for wanted in study.workloads:
        workload = create_workload(wanted.parsed(), study.init)
        ref = str(workload.ref)
        if any(str(other.ref) == ref for other in workloads):
            raise StudyError(f"workload {wanted.ref!r} is {ref}, which is listed already")
        lanes = tuple(
            _lane(
                study,
                Lane(
                    id="",
                    workload=ref,
                    label=workload.label,
                    family=workload.family,
                    compiler=choice.name,
                    compiler_label=choice.label,
                    flags=compiler.flags.model_dump(),
                    precision=precision,
                    mode=study.mode,
                    threads=threads,
                    device=profile.name,
                    transfers=study.transfers,
                    batch_sizes=tuple(study.batch_sizes),
                ),
            )
            for precision in study.precision
            for choice, compiler in compilers
        )
        _distinct(lanes)
        workloads.append(WorkloadPlan(workload.ref, workload.label, workload.family, lanes, workload.known))
    workloads = _named(workloads)
    notes = (*(() if study.build_for else profile.check()), *_purpose(study), *_credentials(workloads))
    known = history or TimingHistory()
    return StudyPlan(study, profile.name, profile.accelerator, threads, tuple(workloads), notes, known)


def _purpose(study: Study) -> Iterator[str]:
    """Remark about a study that decides."""
    if study.purpose == "characterise":
        return
    kept = "".join(f", {limit}" for limit in study.kept_limits)
    if study.raced is None:
        yield (
            f"decides by {study.objective}{kept}: rounds have no figure of it that cells could race by, so every cell is "
            "measured to its end"
        )
    else:
        yield f"decides by {study.objective}{kept}: a cell that certainly cannot be the best of its workload leaves"


def _credentials(workloads: Sequence[WorkloadPlan]) -> Iterator[str]:
    """Warnings about options that are published with the study."""
    for workload in workloads:
        if keys := ", ".join(credentials.found(workload.ref.options)):
            yield (
                f"{workload.label}: {keys}: options are stored and published with the study and its engines; for a credential "
                "write {env: NAME}, which a function gets from the environment and nobody else"
            )


def _engine_bytes(workload: WorkloadPlan, lane: Lane) -> int:
    engines = len(create(lane.compiler, lane.flags).engines(lane.batch_sizes))
    # The baseline of a model from files also keeps these.
    copies = 2 if lane.compiler == BASELINE and workload.file_bytes is not None else 1
    return engines * copies * workload.weight_bytes


def _threads(study: Study, profile: DeviceProfile) -> int | None:
    """Threads of every runtime; None for each runtime's default.

    Raises `StudyError` if ``all`` is given for a device that is not this machine.
    """
    if study.threads == "default":
        return None
    if study.threads != "all":
        return study.threads
    if not study.build_for:
        return processors.available()
    if profile.accelerator == "cpu":
        raise StudyError(
            f"threads: all: say how many processors {study.build_for} has, as in --threads 8, or 'default'"
        )
    return None  # the accelerator computes


def _distinct(lanes: Sequence[Lane]) -> None:
    """Refuse two names of one lane, as a flag given its default makes."""
    known: dict[str, Lane] = {}
    for lane in lanes:
        other = known.setdefault(lane.id, lane)
        if other is not lane:
            raise StudyError(
                f"compilers {other.compiler_label} and {lane.compiler_label} are the same: the flags that tell them "
                "apart have their defaults; leave one of them out"
            )


def _usable(name: str, flags: Mapping[str, object], *, builds: bool) -> Compiler:  # type: ignore[type-arg]
    """Return a compiler that can run here or, for another device, compile here."""
    compiler, kind = create(name, flags), COMPILERS.get(name)
    availability = kind.building() if builds else kind.availability()
    if not availability.available:
        hint = f"; {availability.hint}" if availability.hint else ""
        raise DependencyError(
            f"compiler {name!r} cannot {'compile' if builds else 'run'} here: {availability.reason}{hint}"
        )
    return compiler


def _lane(study: Study, lane: Lane) -> Lane:
    """Return the lane with its id, a digest of its other fields."""
    content = {**asdict(lane), "init": asdict(study.init), "seed": study.seed}
    for name in ("id", "label", "family", "compiler_label", "batch_sizes"):
        del content[name]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return replace(lane, id=digest)


def _named(workloads: Sequence[WorkloadPlan]) -> list[WorkloadPlan]:
    """Give the workloads distinct labels."""
    names = naming.unique_names({str(workload.ref): workload.label for workload in workloads})
    return [_labelled(workload, names[str(workload.ref)]) for workload in workloads]


def _labelled(workload: WorkloadPlan, label: str) -> WorkloadPlan:
    lanes = tuple(replace(lane, label=label) for lane in workload.lanes)
    return replace(workload, label=label, lanes=lanes)


def _checked(workload: WorkloadPlan, answer: Mapping[str, object] | None) -> WorkloadPlan:
    if answer is None:
        return workload
    if "refused" in answer:
        return replace(workload, refused=str(answer["refused"]))
    label, family = str(answer["label"]), str(answer["family"])
    fixed, size = answer["fixed_batch"], answer.get("file_bytes")
    lanes = tuple(replace(lane, family=family) for lane in workload.lanes)
    return replace(
        workload,
        label=label,
        family=family,
        lanes=lanes,
        fixed_batch=fixed if isinstance(fixed, int) else None,
        batch_question=str(answer.get("batch_question", "")),
        file_bytes=size if isinstance(size, int) else None,
    )
