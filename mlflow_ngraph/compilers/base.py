"""The contract of a compiler adapter.

An adapter turns a model into an engine on disk (`Compiler.compile`, in one process) and an engine on
disk into something that runs (`Compiler.load`, in another process). It knows nothing of studies,
journals or MLflow. To add one, subclass `Compiler` and register it in the entry-point group
``mlflow_ngraph.compilers``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Mode = Literal["sync", "async"]
FlagValue = str | int | float | bool | None


class Flags(BaseModel):
    """Base of the typed options of a compiler. Every field has a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


F = TypeVar("F", bound=Flags)


@dataclass(frozen=True)
class Availability:
    """Whether a compiler can run on this machine."""

    available: bool
    version: str | None
    reason: str = ""
    """Why it cannot run; empty when it can."""
    hint: str = ""
    """What to install or do about it."""


@dataclass(frozen=True)
class Target:
    """Where and how an engine has to run."""

    precision: Precision = "fp32"
    mode: Mode = "sync"
    threads: int | None = None
    """Threads within one inference; None leaves the runtime its own default."""
    accelerator: Literal["cpu", "cuda"] = "cpu"


@dataclass
class Stages:
    """Seconds spent in the named stages of a compilation."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to stage ``name``, also when the block raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Build:
    """What `Compiler.compile` says about the engine that it wrote."""

    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Values that took effect at compile time, also those the compiler chose itself."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """What a machine must have to load the engine: package versions, instruction set, the compiler's own
    compatibility string."""
    export_format: Format | None = None
    """The format the compiler started from; its export time is part of the compile time."""


@dataclass(frozen=True)
class Invocation:
    """Inputs bound to a loaded engine."""

    call: Callable[[], object]
    """One repetition: runs inference on the bound inputs and returns when the outputs are complete."""
    outputs: Callable[[], list[NDArray[np.generic]]]
    """Copies of the outputs of the last `call`."""
    requests: int = 1
    """Inferences in flight within one `call`; more than one only in ``async`` mode."""


class Engine(ABC):
    """A compiled workload in memory, loaded from disk for one batch size.

    Parameters
    ----------
    precision: the precision that took effect, asked of the runtime where the runtime can tell.
    flags: every flag with the value in force, also those that the runtime chose itself (threads, streams, ...).
    """

    def __init__(self, precision: Precision, flags: Mapping[str, FlagValue]) -> None:
        self.precision = precision
        self.flags = flags

    @abstractmethod
    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        """Place ``inputs`` (in the order of the workload's inputs) in the runtime's own tensors.

        Nothing that a caller would do once for many inferences happens inside `Invocation.call`.
        """

    def close(self) -> None:  # noqa: B027 - most engines free themselves
        """Free what the engine holds."""


class Compiler(ABC, Generic[F]):
    """An adapter for one graph compiler."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for people."""
    flags_type: ClassVar[type[Flags]]
    formats: ClassVar[tuple[Format, ...]]
    """What `compile` may read from its source."""
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)
    modes: ClassVar[tuple[Mode, ...]] = ("sync",)
    accelerators: ClassVar[tuple[str, ...]] = ("cpu",)
    runtime_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that `load` needs. They are imported before, so that no timing contains an import."""
    compile_modules: ClassVar[tuple[str, ...] | None] = None
    """Modules that `compile` needs, likewise; None: the same as `load`."""
    blocked_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that must not be imported where an engine is loaded, because a runtime imports them needlessly."""

    def __init__(self, flags: F) -> None:
        self.flags = flags

    @classmethod
    @abstractmethod
    def availability(cls) -> Availability:
        """Whether the compiler can run here. Never raises, and imports nothing heavy."""

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Which batch sizes share one engine; the default is an engine for each batch size."""
        return [(batch,) for batch in batch_sizes]

    def check(self, target: Target) -> None:
        """Refuse a target that the compiler does not know, before any work is done.

        Raises
        ------
        UnsupportedError: the precision, mode or accelerator is not among those of the class.
        """
        for wanted, known in (
            (target.precision, self.precisions),
            (target.mode, self.modes),
            (target.accelerator, self.accelerators),
        ):
            if wanted not in known:
                raise UnsupportedError(f"{self.name} does not run {wanted}: it runs {', '.join(known)}")

    @abstractmethod
    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, stages: Stages
    ) -> Build:
        """Compile and save an engine into the empty ``directory`` for ``batch_sizes``.

        Use the stages ``compile`` (and ``convert`` before it where there is such a step) and ``save``.

        Raises
        ------
        UnsupportedError: the compiler cannot express the model, with its own reason (the operator's name).
        CompileError: the compiler failed.
        """

    @abstractmethod
    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        """Load a saved engine in a fresh process, without the model's code unless the compiler needs it.

        Raises
        ------
        UnsupportedError: the runtime cannot provide the precision or mode that ``target`` asks for.
        """
