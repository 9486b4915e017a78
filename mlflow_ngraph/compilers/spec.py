"""`EngineSpec`, the content of ``spec.json``: an engine's model, target, flags, and requirements for loading.

Adapters write it last, so a directory without one is no engine. The manifest of a package repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from mlflow_ngraph import documents
from mlflow_ngraph.compilers.base import Build, Compiler, FlagValue, Target
from mlflow_ngraph.errors import CompileError, EngineError, UnsupportedError
from mlflow_ngraph.workloads.base import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow_ngraph.workloads.materials import Source

FILE = "spec.json"
_AGAIN = "compile the engine again"
_MOST_BATCH_SIZES = 1000
"""An engine is loaded once for each."""

BatchSize = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]


class FrozenModel(BaseModel):
    """Base of immutable records that refuse unknown fields."""

    # JSON has no NaN and no infinity; as text they are read back as what they were.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings")


class _Tensor(FrozenModel):
    """Validated form of a `TensorSpec`."""

    name: str
    dtype: str = Field(pattern="^(?:bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128))$")
    shape: tuple[Annotated[int, Field(ge=0, lt=1 << 40, strict=True)] | Literal["batch"], ...]
    low: int = 0
    high: int = 2


def _tensor(content: object) -> TensorSpec:
    if isinstance(content, TensorSpec):
        return content
    try:
        return TensorSpec(**dict(_Tensor.model_validate(content)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


Tensors = Annotated[tuple[Annotated[TensorSpec, BeforeValidator(_tensor)], ...], Field(min_length=1)]
Distribution = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Version = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9._!]*$", max_length=100)]


class EngineSpec(FrozenModel):
    """The content of ``spec.json``."""

    schema_version: Literal[1] = 1
    workload: str
    """Canonical reference, such as ``timm:resnet18``."""
    family: str
    digest: str
    """Identifies the content of the model, weights included."""
    inputs: Tensors
    outputs: Tensors
    reference_by: str
    """Runtime of the reference outputs."""
    mixes: str
    """Interaction of a batch's samples in this model; empty if there is none."""
    compiler: str
    asked: dict[str, FlagValue]
    """Every flag as it was asked for, defaults included."""
    target: Target
    """Target of the compilation, as on the device that runs the engine: `Target.build_for` is empty."""
    batch_sizes: tuple[BatchSize, ...] = Field(min_length=1, max_length=_MOST_BATCH_SIZES)
    """Batch sizes that the engine was compiled for."""
    flags: dict[str, FlagValue]
    """Values that took effect at compile time."""
    facts: dict[str, FlagValue]
    """The adapter's own, for `Compiler.load`."""
    requires: dict[str, str]
    """Requirements for loading the engine."""
    packages: dict[Distribution, Version]
    """Versions of the distributions that loading needs beside this package, by their names."""

    @field_validator("batch_sizes")
    @classmethod
    def _differ(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(sizes)) < len(sizes):
            raise ValueError("a batch size stands in it twice")
        return sizes

    @field_validator("target")
    @classmethod
    def _has_threads(cls, target: Target) -> Target:
        if target.threads is not None and target.threads < 1:
            raise ValueError(f"{target.threads} threads compute nothing")
        return target

    @classmethod
    def of(
        cls,
        compiler: Compiler[Any],
        build: Build,
        source: Source,
        batch_sizes: Sequence[int],
        target: Target,
        facts: Mapping[str, FlagValue],
    ) -> EngineSpec:
        """Specification of a new engine; ``facts`` are further data that loading needs."""
        model = source.materials
        return cls(
            workload=str(model.ref),
            family=model.info.family,
            digest=model.digest,
            inputs=source.inputs,
            outputs=source.outputs,
            reference_by=model.reference_by,
            mixes=model.behaviour.mixes,
            compiler=compiler.name,
            asked=compiler.flags.model_dump(mode="json"),
            target=replace(target, build_for=""),
            batch_sizes=tuple(batch_sizes),
            flags=dict(build.flags),
            facts=dict(facts),
            requires=dict(build.requires),
            packages=_needed(compiler, target, model.ref.scheme),
        )

    @property
    def probe_batch(self) -> int:
        """Batch size of the probe: the smallest, so that the probe is small."""
        return min(self.batch_sizes)

    def serves(self, requires: Mapping[str, str]) -> str:
        """Reason why a machine with ``requires`` cannot run the engine; empty when none is known.

        Only the runtime can check the remaining requirements, when it loads the engine.
        """
        for name, present in requires.items():
            needed = self.requires.get(name)
            if needed != present:
                return f"it needs {name} {needed or 'unknown'}, here is {present or 'none'}"
        return ""

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> EngineSpec:
        """Read the specification from an engine's directory. Raises `EngineError` if it is missing or invalid."""
        path = directory / FILE
        try:
            return cls.model_validate_json(documents.content(path))
        except OSError as error:
            raise EngineError(f"{path} is not readable: {error.strerror}; {_AGAIN}") from None
        except ValidationError:
            raise EngineError(f"{path} is not the specification of an engine of this version; {_AGAIN}") from None

    @classmethod
    def read_for(cls, compiler: Compiler[Any], directory: Path, target: Target) -> EngineSpec:
        """Read the specification in order to load the engine.

        Raises `CompileError` if it is missing or another compiler's, and `UnsupportedError` if its precision is not
        that of ``target``.
        """
        try:
            spec = cls.read(directory)
        except EngineError as error:
            raise CompileError(f"{directory} holds no engine: {error}") from None
        if spec.compiler != compiler.name:
            raise CompileError(f"{directory} holds an engine of {spec.compiler}, not of {compiler.name}")
        if (precision := spec.target.precision) != target.precision:
            raise UnsupportedError(f"the engine was compiled for {precision}, not for {target.precision}")
        return spec


_OF_SCHEME = {"timm": ("timm", "torchvision"), "onnx": ("onnx", "mlflow-ngraph-onnx")}
"""Distributions without which a live module of a workload cannot be built again, by the workload's scheme."""


def _needed(compiler: Compiler[Any], target: Target, scheme: str) -> dict[str, str]:
    """Versions of the distributions that loading an engine of ``compiler`` needs, besides this package.

    They bring the adapter and its runtime, are named in the adapter's requirements, or build the workload's module
    where the adapter runs it live.
    """
    brought_by = _brought_by()
    modules = [*compiler.runtime_modules, type(compiler).__module__]
    roots = [module.partition(".")[0] for module in modules]
    names = {brought_by[root][0] for root in roots if root in brought_by and root != __name__.partition(".")[0]}
    names.update(compiler.requires(target))
    if compiler.needs_module:
        names.update(_OF_SCHEME.get(scheme, ()))
    versions = {}
    for name in sorted(names):
        try:
            # What follows a plus tells builds apart that an index serves under one version.
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # a requirement that is no distribution, such as the instruction set
    return versions


@cache
def _brought_by() -> dict[str, list[str]]:
    """Distributions by module. Scans every installed file, so it runs once a process."""
    return dict(packages_distributions())
