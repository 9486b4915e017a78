"""The contract of a compiler adapter: `Compiler` with flags, target and build, and `Engine` with bound inputs.

An adapter compiles a model into an engine on disk (`Compiler.compile`) and loads the engine in another process
(`Compiler.load`). It knows nothing of studies, journals or MLflow. To add one, subclass `Compiler` and register it in
the entry-point group ``mlflow_ngraph.compilers``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Mode = Literal["sync", "async"]
Transfers = Literal["outside", "inside"]
Occupation = Literal["processor", "processors", "machine"]
FlagValue = str | int | float | bool | None


class Flags(BaseModel):
    """Base of the typed options of a compiler. Every field has a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


F = TypeVar("F", bound=Flags)


@dataclass(frozen=True)
class Availability:
    """Result of a check that a compiler can run on this machine."""

    available: bool
    version: str | None
    reason: str = ""
    """Reason why it cannot run; empty when it can."""
    hint: str = ""
    """Advice, such as a package to install."""


@dataclass(frozen=True)
class Target:
    """Device, precision and mode of an engine."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    precision: Precision = "fp32"
    mode: Mode = "sync"
    threads: int | None = None
    """Threads within one inference; None leaves the runtime its own default."""
    accelerator: Literal["cpu", "cuda"] = "cpu"
    transfers: Transfers = "outside"
    """``inside``: one repetition contains the copies of inputs to and outputs from the accelerator. Without one, it makes
    no difference."""
    build_for: str = ""
    """The device that an engine is compiled for, such as ``gpu:sm89``, where it is not this machine; empty where it is.
    Such an engine is not loaded here."""

    @property
    def elsewhere(self) -> BuildTarget | None:
        """Device of `build_for`; None for this machine."""
        return BuildTarget.parse(self.build_for) if self.build_for else None

    def content(self) -> dict[str, Any]:
        """Fields as on the machine that runs the engine: for a device that builds for itself they are the same."""
        fields = asdict(self)
        del fields["build_for"]
        return fields


@dataclass
class Workbench:
    """Resources of a compilation beside its inputs: a stage timer, a directory, and a progress callback."""

    work: Path
    """A folder for what must outlive a killed process, such as the database of a search. The next attempt at the same
    engine finds it as it was left. May not exist yet."""
    tell: Callable[[str], None] = lambda text: None
    """Says what is being done, such as ``tune: task 3/19, trial 64/400, best 12.3 ms``."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to stage ``name``, also when the block raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add the time of an earlier, killed attempt to stage ``name``."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


@dataclass(frozen=True)
class Build:
    """Result of `Compiler.compile`."""

    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Values that took effect at compile time, also those the compiler chose itself."""
    requires: Mapping[str, str] = field(default_factory=dict)
    """Requirements for loading the engine: `Compiler.requires`, and what only the compiler's runtime could
    tell, such as its own compatibility string."""
    export_format: Format | None = None
    """The format the compiler started from; its export time is part of the compile time."""


@dataclass(frozen=True)
class Request:
    """One of the concurrent inferences of an invocation, with memory of its own."""

    call: Callable[[], object]
    """Runs this inference alone and returns when its outputs are complete. Requests may be called from different
    threads at the same time."""
    outputs: Callable[[], list[NDArray[np.generic]]]
    """Copies of the outputs of its last inference."""


@dataclass(frozen=True)
class Invocation:
    """Inputs bound to a loaded engine."""

    call: Callable[[], object]
    """One repetition: runs inference on the bound inputs and returns when the outputs are complete."""
    outputs: Callable[[], list[NDArray[np.generic]]]
    """Copies of the outputs of the last `call`."""
    requests: int = 1
    """Inferences in flight within one `call`; more than one only in ``async`` mode."""
    singly: tuple[Request, ...] = ()
    """The inferences of `call` one by one, for whoever serves requests as they come. Needed in ``async`` mode only:
    with one request in flight it is the `call` itself."""
    stream: Callable[[], AbstractContextManager[Callable[[], object]]] | None = None
    """Keeps all `requests` in flight as long as the context lasts. The function that it gives takes the place of `call`:
    it returns when as many inferences have ended, while the next ones already run. Needed in ``async`` mode only."""

    def repeated(self) -> AbstractContextManager[Callable[[], object]]:
        """Context with the function to call for each of many repetitions.

        The device is never idle between two repetitions. Outputs are complete when the context has ended.
        """
        return nullcontext(self.call) if self.stream is None else self.stream()

    def each(self) -> tuple[Request, ...]:
        """Functions that run the inferences of `call` one by one.

        Raises `UnsupportedError` if an adapter runs several and cannot separate them.
        """
        if self.requests > 1 and len(self.singly) != self.requests:
            raise UnsupportedError(f"the adapter does not give its {self.requests} requests one by one")
        return self.singly or (Request(self.call, self.outputs),)


class Engine(ABC):
    """A compiled workload in memory, loaded from disk for one batch size.

    ``precision`` and ``flags`` are the effective values, as far as the runtime reports them, also those that it chose
    itself (threads, streams, ...).
    """

    def __init__(self, precision: Precision, flags: Mapping[str, FlagValue]) -> None:
        self.precision = precision
        self.flags = flags

    @abstractmethod
    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        """Copy ``inputs`` (in the order of the workload's inputs) into the runtime's own tensors.

        Work that a caller does once for many inferences happens here, not in `Invocation.call`.
        """

    def close(self) -> None:  # noqa: B027 - most engines free themselves
        """Free the engine."""


class Compiler(ABC, Generic[F]):
    """An adapter for one graph compiler."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for people."""
    flags_type: ClassVar[type[Flags]]
    formats: ClassVar[tuple[Format, ...]]
    """Formats that `compile` may read from its source."""
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)
    modes: ClassVar[tuple[Mode, ...]] = ("sync",)
    accelerators: ClassVar[tuple[str, ...]] = ("cpu",)
    runtime_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that `load` needs. They are imported before, so that no timing contains an import."""
    compile_modules: ClassVar[tuple[str, ...] | None] = None
    """Modules that `compile` needs, likewise; None: the same as `load`."""
    blocked_modules: ClassVar[tuple[str, ...]] = ()
    """Modules that must not be imported where an engine is loaded, because a runtime imports them needlessly."""

    reuses_threads: ClassVar[bool] = False
    """True if a runtime gives the threads of a freed engine to the next one. A forked child would wait for them for ever."""
    threaded: ClassVar[bool] = True
    """True if an engine depends on `Target.threads`; False where the accelerator alone computes."""

    explains_elsewhere: ClassVar[bool] = False
    """True if `explain` describes an engine for another device itself, not its form on this machine."""

    needs_module: ClassVar[bool] = False
    """True if `load` builds the live model again, with the packages that the model comes from."""

    shared: ClassVar[bool] = True
    """True if an engine is worth pulling from another machine; False where making it costs less than moving it."""

    program: ClassVar[str] = ""
    """Part of an engine that `load` or `bind` runs as code with the rights of the process, such as a shared
    library; empty where engines are data for a runtime."""

    widest_integer: ClassVar[str | None] = None
    """Type to which the runtime cuts integers of inputs without a word; None where it takes all of their own type."""

    unchecked_requirements: ClassVar[tuple[str, ...]] = ()
    """Names in `Build.requires` that `requires` does not give, since only the runtime can check them."""

    def __init__(self, flags: F) -> None:
        self.flags = flags

    @classmethod
    @abstractmethod
    def availability(cls) -> Availability:
        """Check that the compiler can run here. Never raises, and imports nothing heavy."""

    @classmethod
    def building(cls) -> Availability:
        """Check that the compiler can compile here, also for another device. By default it needs all that running needs."""
        return cls.availability()

    @property
    def searches(self) -> bool:
        """True if `compile` searches by measuring with these flags: it may take hours and has a time limit of its own."""
        return False

    @property
    def occupies(self) -> Occupation:
        """Processors that `compile` occupies: mostly one ``processor``; all its ``processors``; or the ``machine``.

        A compiler that measures needs the machine: nothing may run concurrently.
        """
        return "machine" if self.searches else "processors"

    @property
    def expected_compile_s(self) -> float:
        """Rough seconds to compile and load one engine of ordinary size, for estimates."""
        return 10.0

    @property
    def expected_slowdown(self) -> float:
        """Rough duration of a call as a multiple of eager execution, for estimates."""
        return 1.0

    def requires(self, target: Target) -> dict[str, str]:
        """Requirements of an engine compiled here for ``target``: versions, instruction set, GPU.

        Known without importing a runtime. An engine of one machine runs on another whose answer is equal. With
        `Target.build_for` it is the answer of that device.
        """
        return {self.name: self.availability().version or ""}

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Batch sizes grouped by engine; the default is an engine for each batch size."""
        return [(batch,) for batch in batch_sizes]

    def check(self, target: Target) -> None:
        """Refuse a target that the compiler does not support, before any work is done.

        Raises `UnsupportedError` for another precision, mode, accelerator or device.
        """
        for wanted, known in (
            (target.precision, self.precisions),
            (target.mode, self.modes),
            (target.accelerator, self.accelerators),
        ):
            if wanted not in known:
                raise UnsupportedError(f"{self.name} does not run {wanted}: it runs {', '.join(known)}")
        if target.elsewhere is not None:
            self.check_elsewhere(target, target.elsewhere)

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        """Refuse a device for which engines cannot be compiled here. The default refuses every one.

        Raises `UnsupportedError` with the reason.
        """
        raise UnsupportedError(f"{self.name} compiles for the machine that it runs on, and not here for {device}")

    @abstractmethod
    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        """Compile and save an engine into the empty ``directory`` for ``batch_sizes``.

        Use the stages ``compile`` (before it ``convert`` and ``tune``, where there are such steps) and ``save``. Raises
        `UnsupportedError` where the compiler cannot express the model, with its own reason (the operator's name), and
        `CompileError` where it fails.
        """

    @abstractmethod
    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        """Load a saved engine in a fresh process, without the model's code unless the compiler needs it.

        Raises `UnsupportedError` if the runtime lacks the precision or mode of ``target``.
        """

    def known_cause(self, source: Source, batch: int, target: Target) -> str:
        """Known cause of wrong outputs of a model on this machine, and its cure; empty without one. Verdicts name it."""
        return ""

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        """Explain the compiled model by the compiler's own introspection, in the process that compiled it.

        The default knows only the compiler's name.
        """
        return Explanation()
