"""What to measure: a study, read from YAML and validated, or built in Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from mlflow_ngraph.compilers.base import Mode, Precision, Transfers
from mlflow_ngraph.errors import StudyError
from mlflow_ngraph.validation import explain
from mlflow_ngraph.workloads.base import Init, WorkloadRef

BASELINE = "identity"
"""The compiler that speed-ups and parity refer to."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class WorkloadChoice(_Model):
    """A workload of a study. In YAML either text (``timm:resnet18``) or a mapping with ``ref``."""

    ref: str
    """``scheme:target``, a name of the paper such as ``resnet18``, or either with options as a query."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scheme, such as ``width`` and ``depth`` of a block, or ``inputs`` of a torch factory."""

    def parsed(self) -> WorkloadRef:
        """The reference with the options of both forms together."""
        text = self.ref if ":" in self.ref.partition("?")[0] else f"paper:{self.ref}"
        ref = WorkloadRef.parse(text)
        return WorkloadRef(ref.scheme, ref.target, {**ref.options, **self.options})


class CompilerChoice(_Model):
    """A compiler of a study with its flags. In YAML either a name or a mapping."""

    name: str
    flags: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Flags that differ from the compiler's defaults."""

    @property
    def label(self) -> str:
        """The name, followed by the flags that were given."""
        shown = ",".join(f"{key}={value}" for key, value in sorted(self.flags.items()))
        return f"{self.name}[{shown}]" if shown else self.name


class WarmUp(_Model):
    """When the warm-up of a cell ends: the medians of two neighbouring windows agree, or a bound is reached."""

    window: int = Field(5, ge=2)
    """Repetitions in a window."""
    tolerance: float = Field(0.05, gt=0, lt=1)
    """Largest relative difference between the medians of two neighbouring windows that counts as steady."""
    max_seconds: float = Field(3.0, gt=0)
    """Stop warming up after this many seconds, and say that it was not steady."""


class Stability(_Model):
    """When a cell is called ``unstable``, because the machine was not quiet enough."""

    max_foreign_cpu_percent: float = Field(10.0, ge=0)
    """Largest share of the whole machine that other processes may use while the cell is timed."""
    max_spread: float = Field(0.1, gt=0)
    """Largest robust coefficient of variation of the medians of the cell's slices."""


class Limits(_Model):
    """Bounds in seconds; what they cut short is recorded with what was reached."""

    prepare_seconds: float = Field(1800, gt=0)
    """Building, exporting and running a workload with the baseline once."""
    compile_seconds: float = Field(1800, gt=0)
    """One compilation; beyond it the verdict is ``timeout``."""
    search_seconds: float = Field(172800, gt=0)
    """What a compilation that searches by measuring, such as tuned TVM, may take beyond ``compile_seconds``."""
    load_seconds: float = Field(600, gt=0)
    """Loading an engine, its first inference and its parity check."""
    cell_seconds: float = Field(120, gt=0)
    """Timed seconds of one cell; beyond it the cell keeps the repetitions that it reached."""
    slice_seconds: float = Field(5, gt=0)
    """Timed seconds of one slice; a slice always has at least one repetition."""


def _choice(key: str) -> BeforeValidator:
    """Accept the short form of a choice: the bare text."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


class Study(_Model):
    """What to measure, and how."""

    name: str = Field("study", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the study in MLflow and on disk."""
    description: str = ""
    """One line for people."""
    device: str = "host"
    """The device profile: ``xeon``, ``gpu``, ``orin``, or ``host`` for whatever this machine is."""
    workloads: list[Annotated[WorkloadChoice, _choice("ref")]] = Field(min_length=1)
    """The models to compile."""
    compilers: list[Annotated[CompilerChoice, _choice("name")]] = Field(min_length=1)
    """The compilers; one may stand several times with different flags. ``identity`` is always measured."""
    batch_sizes: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_listed)] = Field(min_length=1)
    """Batch sizes, each a positive integer."""
    precision: Annotated[list[Precision], BeforeValidator(_listed)] = Field(["fp32"], min_length=1)
    """Precisions that the engines compute in; parity is always against fp32."""
    mode: Mode = "sync"
    """``sync``: one request in flight. ``async``: as many as the runtime wants."""
    transfers: Transfers = "outside"
    """Whether a repetition on a GPU contains the copies of inputs and outputs between host and device: ``inside`` or
    ``outside``."""
    threads: int | Literal["all", "default"] = "all"
    """Threads of every runtime: a number, ``all`` processors of this machine, or each runtime's own ``default``."""
    repetitions: int = Field(100, ge=1)
    """Timed repetitions of a cell."""
    slice_repetitions: int = Field(10, ge=1)
    """Repetitions a lane gets in one round before the next lane has its turn."""
    warmup: WarmUp = WarmUp()
    stability: Stability = Stability()
    limits: Limits = Limits()
    init: Init = Init()
    """How the parameters of the models come about."""
    seed: int = 0
    """Seeds the inputs and the order of lanes within a round."""
    cache: Literal["local", "server", "off"] = "local"
    """Where to look for engines that somebody has compiled before: on this machine (``local``), also on the tracking
    server (``server``), or nowhere (``off``). Does not change what is measured."""

    @field_validator("cache", mode="before")
    @classmethod
    def _yaml_off(cls, value: Any) -> Any:
        # YAML reads a bare `off` as false.
        return "off" if value is False else value

    @field_validator("threads", mode="before")
    @classmethod
    def _thread_count(cls, value: Any) -> Any:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if number in ("all", "default") or (isinstance(number, int) and not isinstance(number, bool) and number >= 1):
            return number
        raise ValueError(f"expected a number of threads from 1 on, 'all' or 'default', found {value!r}")

    @field_validator("workloads")
    @classmethod
    def _known_schemes(cls, value: list[WorkloadChoice]) -> list[WorkloadChoice]:
        for choice in value:
            choice.parsed()
        return _distinct(value, "workload", lambda choice: str(choice.parsed()))

    @field_validator("compilers")
    @classmethod
    def _baseline_first(cls, value: list[CompilerChoice]) -> list[CompilerChoice]:
        _distinct(value, "compiler", lambda choice: choice.label)
        if not any(choice.name == BASELINE for choice in value):
            value = [CompilerChoice(name=BASELINE), *value]
        return sorted(value, key=lambda choice: choice.name != BASELINE)

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        return sorted(_distinct(value, "batch size", str))

    def digest(self) -> str:
        """Identifies the content of the study; its name and description do not count, nor where engines come from."""
        content = self.model_dump(mode="json", exclude={"name", "description", "cache"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def to_yaml(self) -> str:
        """The study as a file that `load` reads back."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _distinct(values: list[Any], kind: str, key: Any) -> list[Any]:
    seen: set[str] = set()
    for value in values:
        name = key(value)
        if name in seen:
            raise ValueError(f"{kind} {name!r} is listed twice")
        seen.add(name)
    return values


def ready_made() -> dict[str, Path]:
    """The studies that come with the package, by name."""
    root = Path(str(resources.files("mlflow_ngraph") / "studies"))
    return {path.stem: path for path in sorted(root.glob("*.yaml"))}


def load(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Study:
    """Read a ready-made study by name or a study file by path, with some of its keys replaced.

    Raises
    ------
    StudyError: the file or an override is invalid; names the file, the key and what is allowed.
    """
    ready = ready_made()
    path = ready.get(name_or_path) or Path(name_or_path)
    if not path.is_file():
        close = get_close_matches(name_or_path, ready, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise StudyError(f"no study {name_or_path!r}: {hint}write a path to a YAML file, or one of {', '.join(ready)}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise StudyError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise StudyError(f"{path}: expected a mapping of keys, found {type(content).__name__}")
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    return parse({"name": path.stem, **content, **given}, str(path))


def parse(content: Mapping[str, Any], origin: str = "study") -> Study:
    """Validate the content of a study; ``origin`` names it in messages.

    Raises
    ------
    StudyError: as in `load`.
    """
    try:
        return Study.model_validate(dict(content))
    except ValidationError as error:
        raise StudyError(f"{origin}: {explain(error, Study)}") from None
