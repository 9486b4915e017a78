"""A compiler that does as it is told: it is right, slow, wrong, hangs, leaks, crashes.

It replays the baseline's outputs, so it needs nothing but NumPy. It is not registered; whoever wants it by name puts
``fake = mlflow_ngraph.testing.fake:FakeCompiler`` into the entry-point group ``mlflow_ngraph.compilers``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Invocation,
    Mode,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

    Arrays = list[NDArray[Any]]

VERSION = "1.0"
LEAK_BYTES = 1 << 20
"""What ``leak`` keeps each time."""
ASYNC_REQUESTS = 2

Stage = Literal["compile", "load", "run"]
_leaked: list[bytearray] = []


class FakeFlags(Flags):
    """What the fake compiler does."""

    behaviour: Literal["ok", "slow", "wrong", "nan", "hang", "leak", "crash", "oom", "raise", "unsupported"] = "ok"
    """``ok`` and ``slow`` give the baseline's outputs, ``wrong`` their negatives, ``nan`` not-a-number, all of them at
    every stage; ``hang`` never returns, ``leak`` keeps a mebibyte, ``crash`` is a segmentation fault, ``oom`` a
    `MemoryError`, ``raise`` a `RuntimeError`, ``unsupported`` names an operator, each at the stage ``at``."""
    at: Stage = "run"
    """Where the behaviour and the delay happen: while compiling, while loading, or in every run."""
    delay_ms: float = Field(0.0, ge=0)
    """Milliseconds that the stage ``at`` takes longer."""
    wait: Literal["sleep", "spin"] = "sleep"
    """How the delay passes: ``sleep`` leaves the processor to others, ``spin`` keeps it busy and is more exact."""

    @model_validator(mode="after")
    def _slow_by_something(self) -> FakeFlags:
        if self.behaviour == "slow" and self.delay_ms == 0:
            raise ValueError("behaviour slow needs a delay_ms above 0")
        return self


class FakeCompiler(Compiler[FakeFlags]):
    """Saves what the baseline computed, and gives it back when it sees the same inputs."""

    name: ClassVar[str] = "fake"
    summary: ClassVar[str] = "replays the baseline's outputs, or misbehaves as told"
    flags_type: ClassVar[type[Flags]] = FakeFlags
    formats: ClassVar[tuple[Format, ...]] = ()
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")

    @classmethod
    def availability(cls) -> Availability:
        return Availability(True, VERSION)

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        with bench.stage("compile"):
            self._act("compile")
        with bench.stage("save"):
            for batch in batch_sizes:
                _save(directory / f"inputs-b{batch}.npz", source.example(batch))
                _save(directory / f"outputs-b{batch}.npz", source.reference(batch))
            Saved.of(self.name, source, target, {}).write(directory)
        return Build(self.flags.model_dump(), {"fake": VERSION})

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        Saved.read(directory, self.name, target)
        self._act("load")
        try:
            inputs, outputs = _load(directory / f"inputs-b{batch}.npz"), _load(directory / f"outputs-b{batch}.npz")
        except FileNotFoundError:
            raise CompileError(f"{directory} holds no engine for batch size {batch}") from None
        if self.flags.behaviour == "wrong":
            outputs = [-array for array in outputs]
        if self.flags.behaviour == "nan":
            outputs = [np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in outputs]
        requests = ASYNC_REQUESTS if target.mode == "async" else 1
        in_force = {**self.flags.model_dump(), "threads": 1, "requests": requests}
        return _FakeEngine(inputs, outputs, in_force, lambda: self._act("run"), requests)

    def _act(self, stage: Stage) -> None:
        """Do what the flags say for a stage."""
        if stage != self.flags.at:
            return
        _wait(self.flags.delay_ms / 1000, self.flags.wait)
        action = _ACTIONS.get(self.flags.behaviour)
        if action is not None:
            action()


def _wait(seconds: float, how: str) -> None:
    if how == "sleep":
        time.sleep(seconds)
        return
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        pass


def _hang() -> None:
    while True:
        time.sleep(3600)


def _leak() -> None:
    # Written to, so that the memory is really taken.
    _leaked.append(bytearray(b"x" * LEAK_BYTES))


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _out_of_memory() -> None:
    raise MemoryError("the fake compiler ran out of memory, as told")


def _raise() -> None:
    raise RuntimeError("the fake compiler failed, as told")


def _unsupported() -> None:
    raise UnsupportedError("fake has no operator FakeOp")


_ACTIONS: Mapping[str, Callable[[], None]] = {
    "hang": _hang,
    "leak": _leak,
    "crash": _crash,
    "oom": _out_of_memory,
    "raise": _raise,
    "unsupported": _unsupported,
}


def _save(path: Path, arrays: Sequence[NDArray[Any]]) -> None:
    np.savez(path, *arrays)


def _load(path: Path) -> Arrays:
    with np.load(path) as content:
        return [content[f"arr_{index}"] for index in range(len(content.files))]


class _FakeEngine(Engine):
    def __init__(
        self,
        inputs: Sequence[NDArray[Any]],
        outputs: Sequence[NDArray[Any]],
        flags: Mapping[str, FlagValue],
        act: Callable[[], None],
        requests: int,
    ) -> None:
        super().__init__("fp32", flags)
        self._inputs = inputs
        self._outputs = outputs
        self._act = act
        self._requests = requests

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        for given, known in zip(inputs, self._inputs, strict=True):
            if not np.array_equal(given, known):
                raise ValueError("the fake compiler knows the outputs of the prepared inputs only")
        return Invocation(self._act, lambda: [array.copy() for array in self._outputs], self._requests)
