"""What an engine directory says about itself, so that it can be loaded where the workload is unknown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.compilers.base import FlagValue, Precision, Target
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import TensorSpec

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

FILE = "interface.json"


@dataclass(frozen=True)
class Saved:
    """The interface of a saved engine, and how it was compiled."""

    compiler: str
    precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    facts: Mapping[str, FlagValue] = field(default_factory=dict)
    """What loading needs to know, and the flags that took effect at compile time."""

    @classmethod
    def of(cls, compiler: str, source: Source, target: Target, facts: Mapping[str, FlagValue]) -> Saved:
        """The interface of ``source`` compiled for ``target``."""
        return cls(compiler, target.precision, tuple(source.inputs), tuple(source.outputs), dict(facts))

    def write(self, directory: Path) -> None:
        """Write it into the engine's directory."""
        (directory / FILE).write_text(json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path, compiler: str, target: Target) -> Saved:
        """Read it from the engine's directory.

        Raises
        ------
        CompileError
            There is none, or another compiler wrote the engine.
        UnsupportedError
            The engine was compiled for another precision than ``target`` asks for.
        """
        path = directory / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            saved = cls(
                content["compiler"],
                content["precision"],
                tuple(TensorSpec.from_dict(item) for item in content["inputs"]),
                tuple(TensorSpec.from_dict(item) for item in content["outputs"]),
                content["facts"],
            )
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CompileError(f"{directory} holds no engine: {path.name} is not readable: {error}") from None
        if saved.compiler != compiler:
            raise CompileError(f"{directory} holds an engine of {saved.compiler}, not of {compiler}")
        if saved.precision != target.precision:
            raise UnsupportedError(f"the engine was compiled for {saved.precision}, not for {target.precision}")
        return saved
