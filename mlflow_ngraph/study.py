"""Study: the definition of a benchmark, read from YAML and validated, or built in Python."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from mlflow_ngraph import documents, study_metrics
from mlflow_ngraph.compilers.base import Mode, Precision, Transfers
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import DeviceError, StudyError, UnknownNameError, WorkloadError
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.objectives import BOUNDS, OBJECTIVES, Limit, Raced, limits
from mlflow_ngraph.process_memory import FreedMemory
from mlflow_ngraph.study_metrics import CustomMetric
from mlflow_ngraph.study_settings import (
    Adaptive,
    Arrivals,
    CompilerChoice,
    Limits,
    Section,
    Stability,
    WarmUp,
    count,
    distinct,
    listed,
    optional_duration,
)
from mlflow_ngraph.text import shortened
from mlflow_ngraph.validation import explain
from mlflow_ngraph.workloads.base import DIGEST, Init, WorkloadRef
from mlflow_ngraph.workloads.live import Live, is_module

BASELINE = EAGER
"""Default reference of ratios, and the reference of parity."""
Purpose = Literal["characterise", "decide"]
_SLICE, _ROUNDS_OF_SHORT_STUDY = 10, 3
"""Repetitions of a slice, and the fewest rounds that a short study is divided into."""


class WorkloadChoice(Section):
    """A workload of a study. In YAML either text (``timm:resnet18``) or a mapping with ``ref``."""

    ref: str
    """``scheme:target``, a name of the paper such as ``resnet18``, or either with options as a query."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scheme, such as ``width`` and ``depth`` of a block, or ``inputs`` of a torch factory."""

    def parsed(self) -> WorkloadRef:
        """The reference with the options of both forms."""
        text = self.ref if ":" in self.ref.partition("?")[0] else f"paper:{self.ref}"
        ref = WorkloadRef.parse(text)
        for name, value in ref.options.items():
            if str(self.options.get(name, value)) != str(value):
                raise WorkloadError(
                    f"workload {shortened(self.ref)}: {name} is {value} there, and another one in options"
                )
        return WorkloadRef(ref.scheme, ref.target, {**ref.options, **self.options})

    @property
    def names(self) -> tuple[str, str]:
        """The reference as written, and in full."""
        return self.ref, str(self.parsed())


def _choice(key: str) -> BeforeValidator:
    """Accept the short form of a choice: its text alone."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _workload(value: Any) -> Any:
    """Accept the short form of a workload, or a module in memory with its inputs."""
    if isinstance(value, Live):
        return value.written()
    if is_module(value):
        raise ValueError(
            f"{type(value).__name__} is a module without inputs: write Live(module, inputs) with example inputs, from "
            "mlflow_ngraph import Live"
        )
    return {"ref": value} if isinstance(value, str) else value


MOST_BATCH, MOST_THREADS, MOST_REPETITIONS = 1_000_000, 4096, 100_000_000
"""Upper bounds against typing errors: refused at the start and not after hours."""


class Study(Section):
    """A benchmark plan: models, compilers, batch sizes and precisions on a device, and how to measure them."""

    name: str = Field("study", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the study in MLflow and on disk."""
    description: str = ""
    """One line for people."""
    device: str = "host"
    """The device profile: ``xeon``, ``gpu``, ``orin``, or ``host`` for this machine."""
    build_for: str = ""
    """Compile for this device, such as ``gpu:sm89`` or ``xeon``, and measure nothing; replaces ``device``. Empty
    measures here."""
    workloads: list[Annotated[WorkloadChoice, BeforeValidator(_workload)]] = Field(min_length=1)
    """The models to compile; from Python also a `Live` module."""
    baseline: str = BASELINE
    """The lane that speed-ups and other ratios refer to: the name of a compiler of the study, with its flags if it is
    listed several times, such as ``openvino[num_streams=2]``. The reference of parity does not depend on it."""
    compilers: list[Annotated[CompilerChoice, _choice("name")]] = Field(min_length=1)
    """The compilers; one may be listed several times with different flags. The baseline is always measured."""
    batch_sizes: Annotated[list[Annotated[int, Field(ge=1, le=MOST_BATCH)]], BeforeValidator(listed)] = Field(
        min_length=1
    )
    """Batch sizes, each an integer from 1 to a million."""
    precision: Annotated[list[Precision], BeforeValidator(listed)] = Field(["fp32"], min_length=1)
    """Precisions of the engines; parity is always against fp32."""
    purpose: Purpose = "characterise"
    """``characterise`` measures every cell until its figures are precise enough. ``decide`` measures only until the
    best cell of a workload is known; cells that cannot win leave."""
    objective: str | None = None
    """The figure to optimise, with ``purpose: decide``: ``throughput`` by default, ``latency``, ``cpu``, ``memory``,
    ``energy`` or ``size``."""
    bounds: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Limits of the best cell, with ``purpose: decide``, named as the options of ``recommend``, such as
    ``max_latency_ms``."""
    within: Annotated[float | None, BeforeValidator(optional_duration)] = None
    """Time limit of the study in seconds, or text such as ``5m``; unset has none. Changes the number of measured cells
    and not how they are measured."""
    mode: Mode = "sync"
    """``sync``: one request in flight. ``async``: as many as the runtime chooses."""
    transfers: Transfers = "outside"
    """Copies of inputs and outputs between host and device count for a repetition on a GPU (``inside``) or not
    (``outside``)."""
    freed_memory: FreedMemory = "keep"
    """Memory that a measuring process frees: ``keep`` it for the next inference, or ``return`` much of it to the system
    and get it back page by page, as a bare process does."""
    threads: int | Literal["all", "default"] = "all"
    """Threads of every runtime: a number, ``all`` processors of this machine, or each runtime's own ``default``."""
    repetitions: int | Literal["auto"] = 100
    """Timed repetitions of a cell: a number, or ``auto`` for as many as ``adaptive`` needs."""
    adaptive: Adaptive = Adaptive()
    slice_repetitions: int | None = Field(None, ge=1)
    """Repetitions of a lane in a round. By default ten, or fewer so that a cell has three rounds: one round tells
    nothing of the next."""
    warmup: WarmUp = WarmUp()
    stability: Stability = Stability()
    arrivals: Annotated[Arrivals | None, BeforeValidator(Arrivals.from_rates)] = None
    """Also measure the latency of requests that arrive in an open loop; unset does not."""
    limits: Limits = Limits()
    init: Init = Init()
    """Initialisation of the models' parameters."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seeds the inputs and the order of lanes within a round; below 2**32."""
    builds: Literal["together", "alone"] = "together"
    """Prepare, compile and verify concurrently, as far as processors and memory allow (``together``), or one after the
    other for comparable compile times (``alone``). Nothing is timed meanwhile."""
    cache: Literal["local", "server", "off"] = "local"
    """Reuse engines compiled before: on this machine (``local``), also from the tracking server (``server``), or not
    (``off``). Does not change what is measured."""
    metrics: dict[str, Annotated[CustomMetric, _choice("expression")]] = Field(default_factory=dict)
    """Metrics declared by the study, by name. They do not change what is measured."""

    def __init__(self, **content: Any) -> None:
        """Validate the content; raise `StudyError` with the key and the allowed values if it is invalid."""
        try:
            super().__init__(**content)
        except ValidationError as error:
            raise StudyError(explain(error, Study)) from None

    @model_validator(mode="before")
    @classmethod
    def _objective_of_a_decision(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and content.get("purpose") == "decide" and content.get("objective") is None:
            return {**content, "objective": "throughput"}
        return content

    @model_validator(mode="after")
    def _decision(self) -> Study:
        if self.purpose == "characterise" and (self.objective is not None or self.bounds):
            key = "objective" if self.objective is not None else "bounds"
            raise ValueError(f"{key} needs 'purpose: decide' (--purpose decide): write that as well, or leave it out")
        if self.mode == "async" and self.objective == "latency":
            raise ValueError("objective latency: mode async has none, because several requests are in flight at once")
        return self

    @model_validator(mode="after")
    def _constants_of_all_workloads(self) -> Study:
        study_metrics.check(self.metrics, [choice.names for choice in self.workloads])
        return self

    @model_validator(mode="before")
    @classmethod
    def _device_elsewhere(cls, data: Any) -> Any:
        """Replace ``device`` by the profile of ``build_for``."""
        if isinstance(data, Mapping) and data.get("build_for"):
            try:
                elsewhere = BuildTarget.parse(str(data["build_for"]))
            except DeviceError as error:
                raise ValueError(f"build_for: {error}") from None
            return {**data, "build_for": str(elsewhere), "device": elsewhere.device}
        return data

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str | None) -> str | None:
        if value is not None and value not in OBJECTIVES:
            raise ValueError(str(UnknownNameError("objective", value, OBJECTIVES)))
        return value

    @field_validator("bounds")
    @classmethod
    def _known_bounds(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            if name not in BOUNDS:
                raise ValueError(str(UnknownNameError("bound", name, BOUNDS)))
        return value

    @field_validator("threads", mode="before")
    @classmethod
    def _thread_count(cls, value: Any) -> Any:
        return count(value, "threads", MOST_THREADS, "all", "default")

    @field_validator("repetitions", mode="before")
    @classmethod
    def _repetition_count(cls, value: Any) -> Any:
        return count(value, "repetitions", MOST_REPETITIONS, "auto")

    @field_validator("workloads")
    @classmethod
    def _known_schemes(cls, value: list[WorkloadChoice]) -> list[WorkloadChoice]:
        for choice in value:
            choice.parsed()
        return distinct(value, "workload", lambda choice: str(choice.parsed()))

    @field_validator("compilers")
    @classmethod
    def _baseline_first(cls, value: list[CompilerChoice], info: ValidationInfo) -> list[CompilerChoice]:
        distinct(value, "compiler", lambda choice: choice.label)
        named = info.data.get("baseline", BASELINE)
        fitting = baseline_labels(named, value)
        if not fitting and "[" not in named:
            value, fitting = [CompilerChoice(name=named), *value], [named]
        return sorted(value, key=lambda choice: (choice.label not in fitting[:1], choice.name != BASELINE))

    @model_validator(mode="after")
    def _one_baseline(self) -> Study:
        fitting = baseline_labels(self.baseline, self.compilers)
        if not fitting:
            lanes = ", ".join(choice.label for choice in self.compilers)
            raise ValueError(f"baseline {shortened(self.baseline)} is no lane of the study: write one of {lanes}")
        if len(fitting) > 1 and self.baseline != BASELINE:
            raise ValueError(
                f"baseline {shortened(self.baseline)} may be several lanes: write one of {', '.join(fitting)}"
            )
        return self

    @field_validator("precision")
    @classmethod
    def _different(cls, value: list[Precision]) -> list[Precision]:
        return distinct(value, "precision", str)

    @field_validator("batch_sizes", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(size, bool) for size in value):
            raise ValueError("expected numbers from 1 on, found true or false")
        return value

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        return sorted(distinct(value, "batch size", str))

    @property
    def slice_length(self) -> int:
        """Repetitions of a slice."""
        if self.slice_repetitions is not None:
            return self.slice_repetitions
        if self.repetitions == "auto":
            return _SLICE
        return min(_SLICE, -(-self.repetitions // _ROUNDS_OF_SHORT_STUDY))

    @property
    def baseline_label(self) -> str:
        return baseline_labels(self.baseline, self.compilers)[0]

    @property
    def raced(self) -> Raced | None:
        """The objective of a race; None when every cell is measured completely."""
        return next((name for name in get_args(Raced) if name == self.objective), None)

    @property
    def kept_limits(self) -> list[Limit]:
        """Limits of the best cell."""
        return limits(self.bounds)

    def digest(self) -> str:
        """Digest of everything that determines the measurement: without name, description, declared metrics, engine
        sources and time limit.
        """
        besides = {"name", "description", "cache", "metrics", "within"}
        if self.baseline == BASELINE:
            besides.add("baseline")  # a study from before there was a choice goes on as the same one
        content = self.model_dump(mode="json", exclude=besides)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def to_yaml(self) -> str:
        """The study as YAML that `load` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def baseline_labels(named: str, compilers: Sequence[CompilerChoice]) -> list[str]:
    """Labels of the compilers that a baseline's name fits: those of that label, else those of that name."""
    whole = [choice.label for choice in compilers if choice.label == named]
    return whole or [choice.label for choice in compilers if choice.name == named]


def recorded_baseline(study: Mapping[str, Any]) -> str:
    """Label of the baseline of a study as `Study.model_dump` gives it; older ones omit it."""
    compilers = [CompilerChoice(**choice) for choice in study.get("compilers", ())]
    named: str = study.get("baseline", BASELINE)
    return next(iter(baseline_labels(named, compilers)), named)


def ready_made() -> dict[str, Path]:
    """Studies of the package, by name."""
    root = Path(str(resources.files("mlflow_ngraph") / "studies"))
    return {path.stem: path for path in sorted(root.glob("*.yaml"))}


def load(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read a ready-made study by name or a study file by path, with overrides of its keys.

    Raises
    ------
    StudyError
        The file or an override is invalid; names the file, the key and the allowed values.
    """
    ready = ready_made()
    path = ready.get(name_or_path) or Path(name_or_path)
    if not path.is_file():
        close = get_close_matches(name_or_path, ready, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise StudyError(f"no study {name_or_path!r}: {hint}write a path to a YAML file, or one of {', '.join(ready)}")
    try:
        content = documents.from_yaml(path)
    except (ValueError, OSError) as error:
        if path.suffix in (".onnx", ".pt2"):
            raise StudyError(f"{path}: a model and no study: write --workloads {path.suffix[1:]}:{path}") from None
        raise StudyError(f"{path}: not readable as YAML: {error}") from None
    if not isinstance(content, dict):
        raise StudyError(f"{path}: expected a mapping of keys, found {type(content).__name__}")
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    if isinstance(given.get("workloads"), list):
        given["workloads"] = _with_options(given["workloads"], content.get("workloads"), path)
    own = Arrivals.from_rates(content.get("arrivals"))
    if isinstance(own, Mapping) and isinstance(given.get("arrivals"), Mapping):
        # Rates and bound are separate options; the file may have one of them.
        given["arrivals"] = {**own, **given["arrivals"]}
    return parse({"name": _plain(path.stem), **content, **given}, str(path))


def _plain(stem: str) -> str:
    """A name of a file as that of a study."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:100] or "study"


def _with_options(asked: Sequence[Any], own: Any, path: Path) -> list[Any]:
    """Replace workload names by the study's own workloads with their options; names as in the file or in results."""
    known = {}
    for workload in own if isinstance(own, list) else ():
        with suppress(WorkloadError, ValidationError):
            known.update(dict.fromkeys(WorkloadChoice.model_validate(_workload(workload)).names, workload))
    for text in asked:
        if isinstance(text, str) and text not in known and DIGEST.search(text):
            raise UnknownNameError(f"workload in {path}", text, known)
    return [known.get(text, text) if isinstance(text, str) else text for text in asked]


def parse(content: Mapping[str, Any], origin: str = "study") -> Study:
    """Validate the content of a study, with the errors of `load`; ``origin`` names it in messages."""
    try:
        return Study(**content)
    except StudyError as error:
        raise StudyError(f"{origin}: {error}") from None
