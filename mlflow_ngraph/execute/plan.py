"""A study and a device become lanes: what is compiled, verified and measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.compilers.registry import COMPILERS, create
from mlflow_ngraph.devices import processors
from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.errors import DependencyError, StudyError, WorkloadError
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.execute.timing_history import Experience
from mlflow_ngraph.study import BASELINE, Study
from mlflow_ngraph.workloads import naming
from mlflow_ngraph.workloads.base import WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.registry import create as create_workload

TYPICAL_PARAMETERS = 20_000_000
"""Stands for a model about which nothing is known before it is built."""
PREPARE_SECONDS = 10.0
PREPARED_COPIES = 2
"""Of the weights while a workload is prepared. A baseline that is built from files shares them."""
_PARAMETER_BYTES = 4


@dataclass(frozen=True)
class WorkloadPlan:
    """A workload with the lanes that compile it."""

    ref: WorkloadRef
    label: str
    family: str
    lanes: tuple[Lane, ...]
    known: WorkloadInfo | None
    fixed_batch: int | None = None
    batch_question: str = ""
    """What to ask whoever wants other batch sizes than the fixed one, where no batch axis was found."""
    refused: str = ""
    """Why it cannot be read or built, so that it is not measured; empty as far as is known."""
    file_bytes: int | None = None
    """The size of the files that the model comes from; None where it comes from none, or nobody has looked."""

    @property
    def parameters(self) -> int | None:
        """How many parameters the model has, about; None where that is not known before it is built."""
        if self.file_bytes is not None:
            return self.file_bytes // _PARAMETER_BYTES
        return None if self.known is None else self.known.parameters

    @property
    def weight_bytes(self) -> int:
        """What one copy of the model takes, about."""
        return _PARAMETER_BYTES * (self.parameters or TYPICAL_PARAMETERS)


@dataclass(frozen=True)
class StudyPlan:
    """Everything that a study is going to do."""

    study: Study
    device: str
    accelerator: str
    threads: int | None
    workloads: tuple[WorkloadPlan, ...]
    notes: tuple[str, ...] = ()
    """What a person should know before it starts."""
    experience: Experience = field(default_factory=Experience, compare=False)
    """How long such things took on this machine."""

    @property
    def lanes(self) -> list[Lane]:
        """Every lane, workload by workload."""
        return [lane for workload in self.workloads for lane in workload.lanes]

    @property
    def cells(self) -> int:
        """The number of cells."""
        return sum(len(lane.batch_sizes) for lane in self.lanes)

    @property
    def engine_bytes(self) -> int:
        """Rough bytes of all engines, each of which has the weights in single precision."""
        return sum(_engine_bytes(workload, lane) for workload in self.workloads for lane in workload.lanes)

    @property
    def home_bytes(self) -> int:
        """Rough bytes that the study adds to its directory: engines that are not kept here yet, and what is prepared."""
        needed = [(workload, lane) for workload in self.workloads for lane in workload.lanes if not self._has(lane)]
        # Materials are gone after their workload.
        prepared = max((self._prepared_bytes(workload) for workload in self.workloads), default=0)
        return prepared + sum(_engine_bytes(workload, lane) for workload, lane in needed)

    @property
    def of_known_size(self) -> StudyPlan:
        """The same for those workloads alone of which it is known how large they are."""
        return replace(self, workloads=tuple(known for known in self.workloads if known.parameters is not None))

    def _has(self, lane: Lane) -> bool:
        """Whether its engines are kept here, so that they take no more room."""
        return self.study.cache != "off" and self.experience.keeps(lane.workload, lane.compiler, lane.precision)

    def _prepared_bytes(self, workload: WorkloadPlan) -> int:
        """Rough bytes of what compilers start from, beside what becomes a part of engines."""
        built = any(lane.compiler == BASELINE and not self._has(lane) for lane in workload.lanes)
        return 0 if built and workload.file_bytes is not None else PREPARED_COPIES * workload.weight_bytes

    def with_checked(self, found: Mapping[str, Mapping[str, object]]) -> StudyPlan:
        """The plan with what a child process found, by canonical ref: labels, families and fixed batch sizes, or a refusal.

        Raises
        ------
        WorkloadError
            Every workload is refused.
        """
        checked = _named([_checked(workload, found.get(str(workload.ref))) for workload in self.workloads])
        refused = [workload for workload in checked if workload.refused]
        if refused and len(refused) == len(checked):
            raise WorkloadError("; ".join(workload.refused for workload in refused))
        notes = [f"{workload.label} fails, the others are measured: {workload.refused}" for workload in refused]
        return replace(self, workloads=tuple(checked), notes=(*self.notes, *notes))


def make(study: Study, profile: DeviceProfile, experience: Experience | None = None) -> StudyPlan:
    """Expand a study into lanes.

    Parameters
    ----------
    experience : Experience | None
        How long such things took on this machine; None where nobody asks for the time.

    Raises
    ------
    UsageError
        A compiler, flag, workload or option does not exist, or this machine cannot serve the device or run a compiler.
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
    notes = (*(() if study.build_for else profile.check()), *_purpose(study))
    known = experience or Experience()
    return StudyPlan(study, profile.name, profile.accelerator, threads, tuple(workloads), notes, known)


def _purpose(study: Study) -> Iterator[str]:
    """What a person should know of a study that is to decide."""
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


def _engine_bytes(workload: WorkloadPlan, lane: Lane) -> int:
    """Rough bytes of a lane's engines."""
    engines = len(create(lane.compiler, lane.flags).engines(lane.batch_sizes))
    # The baseline of a model from files keeps these beside the weights.
    copies = 2 if lane.compiler == BASELINE and workload.file_bytes is not None else 1
    return engines * copies * workload.weight_bytes


def _threads(study: Study, profile: DeviceProfile) -> int | None:
    """Threads of every runtime; None leaves each its own default.

    Raises
    ------
    StudyError
        All processors are wanted of a device that is not this machine.
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
    """Refuse two names for one lane: a flag that is given its default."""
    known: dict[str, Lane] = {}
    for lane in lanes:
        other = known.setdefault(lane.id, lane)
        if other is not lane:
            raise StudyError(
                f"compilers {other.compiler_label} and {lane.compiler_label} are the same: the flags that tell them "
                "apart have their defaults; leave one of them out"
            )


def _usable(name: str, flags: Mapping[str, object], *, builds: bool) -> Compiler:  # type: ignore[type-arg]
    """A compiler that can run here or, where its engines are for another device, compile here."""
    compiler, kind = create(name, flags), COMPILERS.get(name)
    availability = kind.building() if builds else kind.availability()
    if not availability.available:
        hint = f"; {availability.hint}" if availability.hint else ""
        raise DependencyError(
            f"compiler {name!r} cannot {'compile' if builds else 'run'} here: {availability.reason}{hint}"
        )
    return compiler


def _lane(study: Study, lane: Lane) -> Lane:
    """The lane with its id: the digest of all that makes it what it is."""
    content = {**asdict(lane), "init": asdict(study.init), "seed": study.seed}
    for name in ("id", "label", "family", "compiler_label", "batch_sizes"):
        del content[name]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return replace(lane, id=digest)


def _named(workloads: Sequence[WorkloadPlan]) -> list[WorkloadPlan]:
    """The workloads with labels that no other one of the study has."""
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
