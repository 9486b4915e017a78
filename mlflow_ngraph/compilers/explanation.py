"""`Explanation` of a compiled model, one form for all compilers: kernels, fusions, node counts; as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlflow_ngraph.errors import NGraphError

SCHEMA = 1


@dataclass(frozen=True)
class Kernel:
    """One step of the compiled engine, in the order of execution. Empty text: the compiler does not report it."""

    name: str
    operation: str
    """Kind of work in the compiler's own word, such as ``Convolution`` or ``FusedMatMul``."""
    fused: tuple[str, ...] = ()
    """Names of the model's nodes that this step computes, where it is more than one."""
    implementation: str = ""
    """Kernel or instruction set, such as ``brgconv_avx512_amx``."""
    layout: str = ""
    """Layout of the output in memory, such as ``nhwc`` or ``nChw16c``."""
    precision: str = ""
    """Element type of the computation."""
    provider: str = ""
    """Provider that executes it, where there are several, such as ``CPUExecutionProvider``."""
    microseconds: float | None = None
    """Duration of one execution as the compiler's own profiler saw it; it is no measurement."""


@dataclass(frozen=True)
class Explanation:
    """Result of `Compiler.explain` at one batch size. None: the compiler does not report it."""

    nodes_before: int | None = None
    """Operations of the model as the compiler was given it."""
    nodes_after: int | None = None
    """Steps of the engine."""
    layout_changes: int | None = None
    """Steps that only move data into another layout."""
    kernels: tuple[Kernel, ...] = ()
    code_bytes: int | None = None
    """Size of the machine code or source that was generated for this model."""
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further facts by the compiler's own names."""

    @property
    def fused_groups(self) -> int:
        """Kernels that compute several nodes of the model."""
        return sum(len(kernel.fused) > 1 for kernel in self.kernels)

    def count(self, field_name: str) -> dict[str, int]:
        """Number of kernels by value of a field, such as ``implementation``; the most frequent first."""
        values = (getattr(kernel, field_name) for kernel in self.kernels)
        return dict(Counter(value for value in values if value).most_common())

    def write(self, path: Path) -> None:
        content = {"schema": SCHEMA, **asdict(self)}
        path.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Explanation:
        """Read the JSON of `write`. Raises `NGraphError` if it is missing, damaged, or of another version."""
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("schema") != SCHEMA:
                raise NGraphError(f"{path} comes from another version of mlflow-ngraph: compile again")
            kernels = tuple(Kernel(**{**kernel, "fused": tuple(kernel["fused"])}) for kernel in content["kernels"])
            return cls(**{**content, "kernels": kernels})
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise NGraphError(f"{path} is no readable explanation: {error}") from None


def file_name(batch: int) -> str:
    """Path of the explanation for a batch size within an engine's directory."""
    return f"explanation-b{batch}.json"
