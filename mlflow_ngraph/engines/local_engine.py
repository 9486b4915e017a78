"""LoadedEngine: loads an engine package into this process, warms it up and runs inputs on it, thread-safe.

All calls of a runtime happen in one thread of the engine's own. Several runtimes need that (PyTorch's inference mode
belongs to a thread), and it makes `LoadedEngine.run` thread-safe: calls are answered in the order in which they came.

A forked child has neither that thread nor those of the runtime: it loads the engine anew at its first call.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload
from weakref import WeakSet, finalize

from mlflow_ngraph.compilers.base import Compiler, Engine, FlagValue, Invocation, Target
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.arrays import check_integers, input_arrays, samples
from mlflow_ngraph.engines.batches import Batching, check_batching, inseparable, join, pieces, take_piece
from mlflow_ngraph.engines.engine_thread import EngineThread, starting
from mlflow_ngraph.engines.files import damage
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.package import Package, check_files, read_manifest
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CellError, EngineError, NGraphError, UsageError
from mlflow_ngraph.workloads.base import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.base import Mode

    Arrays = list[NDArray[Any]]

T = TypeVar("T")

WARM_UP_CALLS = 3
"""The first calls are the slow ones: memory is laid out, and some runtimes settle their choices."""


class LoadedEngine:
    """A loaded engine, made by `mlflow_ngraph.load_model`. A context manager that closes itself.

    Thread-safe: calls from several threads are answered one after the other. ``batching`` is the default of `run`.
    ``mode`` is ``sync`` to answer one call at a time; to measure the engine again it is the mode of its study. Raises
    `EngineError` if the engine does not fit this machine, or the runtime cannot load it as it was measured.
    """

    def __init__(self, package: Package, *, batching: Batching = "exact", mode: Mode = "sync") -> None:
        self.batching = check_batching(batching)
        # A program may change its directory, and batch sizes are loaded later.
        self._package = package = replace(package, directory=package.directory.absolute())
        self._checked = self._file_states()
        spec = package.manifest.spec
        compatibility.check(package.manifest, str(package.directory))
        self._compiler: Compiler[Any] = compatibility.compiler_of(spec)
        self._target = replace(spec.target, mode=mode)
        self._worker = worker = EngineThread(f"ngraph-{spec.compiler}")
        # An engine that nobody holds any more ends as a closed one does.
        finalize(self, worker.drop).atexit = False
        _OPEN.add(self)
        _WORKERS.add(worker)
        try:
            # One now, so that an engine which cannot be loaded says so here and not at the first request.
            self._do(prepare, self._compiler, self._target)
            self._do(self._engine, min(self.batch_sizes))
        except BaseException:
            self.close()
            raise

    @property
    def directory(self) -> Path:
        """Directory of the package."""
        return self._package.directory

    @property
    def manifest(self) -> Manifest:
        return self._package.manifest

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.spec.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.spec.outputs

    @property
    def inseparable(self) -> str:
        """Reason why a sample cannot be computed in another batch; empty where it can."""
        return inseparable(self.inputs, self.outputs, self.manifest.spec.mixes)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.manifest.spec.batch_sizes))

    @property
    def precision(self) -> str:
        """Effective precision, as the runtime reports it."""
        return next(iter(self._worker.engines.values())).precision

    @property
    def flags(self) -> dict[str, FlagValue]:
        """Effective flags."""
        engines = self._worker.engines
        return dict(engines[min(engines)].flags) if engines else {}

    @overload
    def run(self, inputs: Mapping[str, Any], *, batching: Batching | None = None) -> dict[str, NDArray[Any]]: ...
    @overload
    def run(self, inputs: Sequence[Any], *, batching: Batching | None = None) -> list[NDArray[Any]]: ...
    def run(
        self, inputs: Mapping[str, Any] | Sequence[Any], *, batching: Batching | None = None
    ) -> dict[str, NDArray[Any]] | list[NDArray[Any]]:
        """Compute the outputs of a batch.

        Parameters
        ----------
        inputs : Mapping[str, Any] | Sequence[Any]
            By name, or in order; NumPy arrays and numbers, or anything with DLPack in the host's memory.
        batching : Batching | None
            ``exact``, ``pad`` or ``split``; see `mlflow_ngraph.engines.batches`.

        Returns
        -------
        dict[str, NDArray[Any]] | list[NDArray[Any]]
            Outputs by name where the inputs were given by name, else in order. They are the caller's own.

        Raises
        ------
        UsageError
            An input is missing, unknown, of another type or shape, or out of its range, or the batch size cannot be
            served.
        EngineError
            The engine is closed, or the runtime failed.
        """
        specs, outputs = self.inputs, self.outputs
        arrays = input_arrays(inputs, specs)
        check_integers(arrays, specs, self._compiler.widest_integer)
        way = self.batching if batching is None else check_batching(batching)
        count = samples(arrays, specs)
        parts = pieces(self.batch_sizes[0] if count is None else count, self.batch_sizes, way)
        if len(parts) == 1 and parts[0].samples == parts[0].size:
            results = self._do(self._infer, parts[0].size, arrays)
        else:
            if self.inseparable:
                raise UsageError(f"{self.inseparable}: only batch sizes of the engine can run")
            # All pieces of a batch in one turn: nobody else's call comes between them.
            cuts = [(part, take_piece(arrays, specs, part)) for part in parts]
            results = join(self._do(lambda: [(part, self._infer(part.size, piece)) for part, piece in cuts]), outputs)
        if isinstance(inputs, Mapping):
            return {spec.name: array for spec, array in zip(outputs, results, strict=True)}
        return results

    def warmup(self, batch_sizes: Sequence[int] | None = None) -> None:
        """Load the engine for some or all batch sizes, and call each a few times on zeros.

        Raises `UsageError` for a batch size that the engine was not compiled for, and `EngineError` if it is closed or
        fails.
        """
        import numpy as np

        for size in self.batch_sizes if batch_sizes is None else batch_sizes:
            if size not in self.batch_sizes:
                raise UsageError(f"the engine has batch sizes {', '.join(map(str, self.batch_sizes))}, not {size}")
            zeros = [np.zeros(spec.resolve(size), spec.dtype) for spec in self.inputs]
            for _ in range(WARM_UP_CALLS):
                self._do(self._infer, size, zeros)

    def bind(self, inputs: Sequence[NDArray[Any]], batch: int) -> Invocation:
        """Bind inputs in the runtime's own memory, for measuring. Run the result with `call` only."""
        return self._do(lambda: self._engine(batch).bind(list(inputs)))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine's thread."""
        return self._do(function)

    def close(self) -> None:
        """Free the engine after all earlier calls. Closing again does nothing."""
        self._worker.close()

    def __enter__(self) -> LoadedEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a loaded engine belongs to its process: give the other one the directory, and load it there")

    def __repr__(self) -> str:
        spec = self.manifest.spec
        sizes = ", ".join(map(str, self.batch_sizes))
        state = ", closed" if self._worker.ended else ""
        return f"<engine of {spec.compiler} for {spec.workload}, {spec.target.precision}, batch {sizes}{state}>"

    def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the engine's thread, which may be this one, and convert its errors to the package's own."""
        worker = self._worker
        try:
            if worker.thread.ident == threading.get_ident() and not worker.ended:
                return function(*arguments)
            return worker.submit(function, *arguments).result()
        except CellError as error:
            raise EngineError(f"{self._package.directory}: {error}; {compatibility.rebuild(self.manifest)}") from error
        except NGraphError:
            raise
        except Exception as error:  # runtimes raise anything
            raise EngineError(f"{self._package.directory}: {one_line(error)}") from error

    def count_loaded(self, compiler: type[Compiler[Any]]) -> int:
        """Number of batch sizes that are loaded, if the engine is of a compiler."""
        return len(self._worker.engines) if type(self._compiler) is compiler else 0

    def begin_anew(self) -> None:
        """Forget the thread and the engines of the parent in a forked child. Calls no runtime."""
        worker = self._worker
        ended = worker.ended
        worker.begin()
        worker.ended = ended
        if worker.engines:
            if self._target.accelerator == "cuda":
                _LOST.add("cuda")
            # Destructors of what the parent loaded would wait for its threads: neither these may run, nor at the end of
            # the process those of the runtimes. That of ONNX Runtime waits even if nothing of it is used here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(worker.engines))
            worker.engines = {}
            libc = ctypes.CDLL(None)
            libc.on_exit(libc["_exit"], None)

    def _engine(self, batch: int) -> Engine:
        """Engine for a batch size, loaded at first use."""
        engines = self._worker.engines
        if batch not in engines:
            if lost := {self._compiler.name, self._target.accelerator} & _LOST:
                raise EngineError(
                    f"{' and '.join(lost)} was used in the process from which this one was forked, and cannot be used "
                    "in both: start processes with the method 'spawn'"
                )
            self._require_unchanged()
            _LOADED[type(self._compiler)] += 1
            engine = self._compiler.load(self._package.engine, batch, self._target)
            measured = self.manifest.precision_in_force
            if measured is not None and engine.precision != measured:
                engine.close()
                raise EngineError(f"the runtime computes in {engine.precision} here; measured was {measured}")
            engines[batch] = engine
        return engines[batch]

    def _file_states(self) -> list[tuple[int, ...]]:
        """State of each file of the engine, which changes when it is written or replaced."""
        states: list[tuple[int, ...]] = []
        for path in sorted(self.manifest.engine_files()):
            with suppress(OSError):
                found = (self._package.engine / path).lstat()
                states.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return states

    def _require_unchanged(self) -> None:
        """Check again what another batch size or a forked child reads, where it was touched meanwhile.

        Raises `EngineError` if it is another engine, or gone.
        """
        now = self._file_states()
        if now != self._checked:
            if problem := damage(self._package.engine, self.manifest.engine_files()):
                raise EngineError(f"{problem}: load the engine again")
            self._checked = now

    def _infer(self, batch: int, arrays: Arrays) -> Arrays:
        invocation = self._engine(batch).bind(arrays)
        invocation.call()
        return list(invocation.outputs())


_OPEN: WeakSet[LoadedEngine] = WeakSet()
_WORKERS: WeakSet[EngineThread] = WeakSet()
_LOADED: Counter[type[Compiler[Any]]] = Counter()
"""Engines that this process has loaded, by compiler, closed ones as well."""
_LOST: set[str] = set()
"""Compilers and accelerators that a forked child cannot use."""


def _begin_anew() -> None:
    """Prepare all engines in a forked child, before anything else runs there."""
    engines = list(_OPEN)
    for compiler, loaded in _LOADED.items():
        if compiler.reuses_threads and loaded > sum(engine.count_loaded(compiler) for engine in engines):
            _LOST.add(compiler.name)
    _LOADED.clear()
    for engine in engines:
        engine.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
def _leave() -> None:
    """End the threads before the interpreter does: what they run would be cut off."""
    for worker in list(_WORKERS):
        worker.leave(wait=True)


def open_prepared(directory: Path, digest: str | None = None) -> Package:
    """Open a package while the runtime is imported: digests take about as long as the import.

    The runtime sees no file of the package meanwhile.
    """
    package = read_manifest(directory, digest)
    with ThreadPoolExecutor(1, "ngraph-digests") as pool:
        with starting():
            checked = pool.submit(check_files, package)
        with suppress(Exception):  # said again, and in order, when the engine is loaded
            spec = package.manifest.spec
            prepare(compatibility.compiler_of(spec), spec.target)
        checked.result()
    return package


def prepare(compiler: Compiler[Any], target: Target) -> None:
    """Import a runtime as the measured process did, without needless imports."""
    if target.threads is not None:
        # TVM's runtime reads it once, when it starts its threads; the adapter says so too, but later.
        os.environ.setdefault("TVM_NUM_THREADS", str(target.threads))
    with _without(compiler.blocked_modules):
        for name in compiler.runtime_modules:
            import_module(name)


@contextmanager
def _without(modules: Sequence[str]) -> Iterator[None]:
    """Let imports of ``modules`` fail, which the runtimes in question handle; already imported ones stay."""
    absent = [name for name in modules if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment] # the documented way to make an import fail
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
