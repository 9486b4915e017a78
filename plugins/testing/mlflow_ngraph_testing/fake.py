"""Fake compiler with selectable behaviour: right, slow, wrong, hanging, leaking, crashing, searching.

It replays the baseline's outputs, so it needs nothing but NumPy. It is not registered; whoever wants it by name puts
``fake = mlflow_ngraph_testing.fake:FakeCompiler`` into the entry-point group ``mlflow_ngraph.compilers``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Request,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

    Arrays = list[NDArray[Any]]

VERSION = "1.0"
LEAK_BYTES = 1 << 20
"""Memory that each ``leak`` keeps."""
ORPHAN_SECONDS = 60
"""Lifetime of the process of ``leave_process``."""
ASYNC_REQUESTS = 2
SEARCH_LOG = "search.log"
"""The file of the work folder in which a search keeps its results."""

Stage = Literal["compile", "search", "explain", "load", "run", "later"]
Behaviour = Literal[
    "ok",
    "slow",
    "wrong",
    "nan",
    "short",
    "constant",
    "hang",
    "leak",
    "leak_threads",
    "leak_stack",
    "leave_process",
    "crash",
    "oom",
    "raise",
    "unsupported",
]
_leaked: list[bytearray] = []


class FakeFlags(Flags):
    """Behaviour of the fake compiler."""

    behaviour: Behaviour = "ok"
    """``ok`` and ``slow`` give the baseline's outputs, ``wrong`` their negatives, ``nan`` not-a-number,
    ``short`` those without the last number of each row, and ``constant`` those of the prepared inputs whatever the
    inputs are; all of them at every stage. ``hang`` never returns, ``leak`` keeps a mebibyte, ``leak_threads`` a thread,
    ``leak_stack`` an alternate stack for signals that is no longer there,
    ``leave_process`` a process in a session of its own, ``crash`` is a segmentation fault, ``oom`` a `MemoryError`,
    ``raise`` a `RuntimeError`, ``unsupported`` names an operator; each of these at the stage ``at``."""
    at: Stage = "run"
    """Stage of the behaviour and the delay: while compiling, in every batch of a search, while explaining, while
    loading, or in every run; ``later`` is every run that begins ``delay_ms`` after loading."""
    delay_ms: float = Field(0.0, ge=0)
    """Milliseconds that the stage ``at`` takes longer. A behaviour that lets it go on comes first."""
    wait: Literal["sleep", "spin"] = "sleep"
    """Kind of delay: ``sleep`` leaves the processor to others, ``spin`` keeps it busy and is more exact."""
    search_batches: int = Field(0, ge=0)
    """Batches of candidates that compiling measures first; measurements of an earlier attempt are reused."""

    @model_validator(mode="after")
    def _happens(self) -> FakeFlags:
        if self.behaviour == "slow" and self.delay_ms == 0:
            raise ValueError("behaviour slow needs a delay_ms above 0")
        if self.at == "search" and self.search_batches == 0:
            raise ValueError("at search needs search_batches above 0")
        return self


class FakeCompiler(Compiler[FakeFlags]):
    """Saves outputs of the baseline, and returns them for the same inputs."""

    name: ClassVar[str] = "fake"
    summary: ClassVar[str] = "replays the baseline's outputs, or misbehaves as told"
    flags_type: ClassVar[type[Flags]] = FakeFlags
    formats: ClassVar[tuple[Format, ...]] = ()
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")

    @classmethod
    def availability(cls) -> Availability:
        return Availability(True, VERSION)

    @property
    def searches(self) -> bool:
        return self.flags.search_batches > 0

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        if self.searches:
            with bench.stage("tune"):
                self._search(bench)
        with bench.stage("compile"):
            self._act("compile")
        with bench.stage("save"):
            for batch in batch_sizes:
                for number, (inputs, outputs) in enumerate(_answers(source, batch)):
                    _save(directory / f"inputs-b{batch}-{number}.npz", inputs)
                    _save(directory / f"outputs-b{batch}-{number}.npz", outputs)
        build = Build(self.flags.model_dump(), {"fake": VERSION})
        EngineSpec.of(self, build, source, batch_sizes, target, {}).write(directory)
        return build

    def _search(self, bench: Workbench) -> None:
        """Each batch adds a line to the log, and the next attempt goes on behind the last one."""
        bench.work.mkdir(parents=True, exist_ok=True)
        log, total = bench.work / SEARCH_LOG, self.flags.search_batches
        done = len(log.read_text().splitlines()) if log.exists() else 0
        for batch in range(done + 1, total + 1):
            bench.tell(f"tune: batch {batch}/{total}")
            self._act("search")
            with log.open("a") as stream:
                stream.write(f"{batch}\n")

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        self._act("explain")
        saved = EngineSpec.read_for(self, directory, target)
        kernels = tuple(Kernel(spec.name, "Replay", precision=target.precision) for spec in saved.outputs)
        return Explanation(
            nodes_before=len(kernels),
            nodes_after=len(kernels),
            layout_changes=0,
            kernels=kernels,
            code_bytes=(directory / f"outputs-b{batch}-0.npz").stat().st_size,
            facts={"behaviour": self.flags.behaviour},
        )

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        EngineSpec.read_for(self, directory, target)
        self._act("load")
        known = [
            (_load(path), self._damaged(_load(path.with_name(path.name.replace("inputs", "outputs")))))
            for path in sorted(directory.glob(f"inputs-b{batch}-*.npz"))
        ]
        if not known:
            raise CompileError(f"{directory} holds no engine for batch size {batch}")
        requests = ASYNC_REQUESTS if target.mode == "async" else 1
        in_force = {**self.flags.model_dump(), "threads": 1, "requests": requests}
        loaded_at = time.monotonic()
        return _FakeEngine(known, self.flags.behaviour == "constant", in_force, lambda: self._run(loaded_at), requests)

    def _damaged(self, outputs: Arrays) -> Arrays:
        if self.flags.behaviour == "wrong":
            return [-array for array in outputs]
        if self.flags.behaviour == "nan":
            return [np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in outputs]
        if self.flags.behaviour == "short":
            return [array[..., :-1] for array in outputs]
        return outputs

    def _run(self, loaded_at: float) -> None:
        self._act("run")
        end = _ENDS.get(self.flags.behaviour)
        if end is not None and self.flags.at == "later" and time.monotonic() - loaded_at >= self.flags.delay_ms / 1000:
            end()

    def _act(self, stage: Stage) -> None:
        """Behave as the flags say at a stage."""
        if stage != self.flags.at:
            return
        left_behind = _LEFT_BEHIND.get(self.flags.behaviour)
        if left_behind is not None:
            left_behind()
        _wait(self.flags.delay_ms / 1000, self.flags.wait)
        end = _ENDS.get(self.flags.behaviour)
        if end is not None:
            end()


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


def _leak_thread() -> None:
    threading.Thread(target=_hang, name="leaked", daemon=True).start()


def _leak_stack() -> None:
    class Stack(ctypes.Structure):
        _fields_: ClassVar = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    size = 64 * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(address, 0, size)), None)


def _leave_process() -> None:
    # In a session of its own it is in no process group that anybody ends.
    code = f"import time; time.sleep({ORPHAN_SECONDS})"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _out_of_memory() -> None:
    raise MemoryError("the fake compiler ran out of memory, as told")


def _raise() -> None:
    raise RuntimeError("the fake compiler failed, as told")


def _unsupported() -> None:
    raise UnsupportedError("fake has no operator FakeOp")


_LEFT_BEHIND: Mapping[str, Callable[[], None]] = {
    "leak": _leak,
    "leak_threads": _leak_thread,
    "leak_stack": _leak_stack,
    "leave_process": _leave_process,
}
_ENDS: Mapping[str, Callable[[], None]] = {
    "hang": _hang,
    "crash": _crash,
    "oom": _out_of_memory,
    "raise": _raise,
    "unsupported": _unsupported,
}


def _answers(source: Source, batch: int) -> Iterator[tuple[Arrays, Arrays]]:
    """The inputs that the baseline has seen, with its outputs."""
    from mlflow_ngraph.workloads.trials import draw

    example = source.example(batch)
    yield example, source.reference(batch)
    known = source.trials(batch)
    for trial, outputs in zip(known.trials, known.outputs, strict=True):
        yield draw(source.inputs, batch, known.seed, trial.number, example, given=known.given)[1], list(outputs)


def _equal(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> bool:
    return len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))


def _save(path: Path, arrays: Sequence[NDArray[Any]]) -> None:
    np.savez(path, *arrays)


def _load(path: Path) -> Arrays:
    with np.load(path) as content:
        return [content[f"arr_{index}"] for index in range(len(content.files))]


class _FakeEngine(Engine):
    def __init__(
        self,
        known: Sequence[tuple[Arrays, Arrays]],
        constant: bool,
        flags: Mapping[str, FlagValue],
        act: Callable[[], None],
        requests: int,
    ) -> None:
        super().__init__("fp32", flags)
        self._known = known
        self._constant = constant
        self._act = act
        self._requests = requests

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        outputs = self._known[0][1] if self._constant else self._find(inputs)
        single = Request(self._act, lambda: [array.copy() for array in outputs])
        return Invocation(single.call, single.outputs, self._requests, (single,) * self._requests)

    def _find(self, inputs: Sequence[NDArray[np.generic]]) -> Arrays:
        for known, outputs in self._known:
            if _equal(inputs, known):
                return outputs
        raise UnsupportedError("the fake compiler knows the outputs of the prepared inputs only")
