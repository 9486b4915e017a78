"""Deserialise an engine, and run it on the GPU: several requests in flight, optionally as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlflow_ngraph.compilers import cuda
from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Request, Target
from mlflow_ngraph.compilers.request_queue import RequestQueue
from mlflow_ngraph.compilers.tensorrt.library import Edition, granted, library, make_logger, reason
from mlflow_ngraph.errors import CompileError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.spec import EngineSpec
    from mlflow_ngraph.workloads.base import TensorSpec


class Deserialized:
    """An engine with the TensorRT objects that must outlive it.

    ``host_code`` lets the engine run its own code on the host, as version-compatible ones do.
    """

    records_itself: ClassVar[bool] = False
    """True if contexts record their work as a CUDA graph by themselves, where that is asked for."""

    def __init__(self, edition: Edition, path: Path, *, host_code: bool = False) -> None:
        self.edition = edition
        self.trt = library(edition)
        self.logger = make_logger(edition, self.trt)
        runtime = granted(self.trt.Runtime(self.logger), self.logger, "no runtime")
        if host_code:
            runtime.engine_host_code_allowed = True
        content = path.read_bytes()
        self._admit(runtime, content, path.name)
        self._runtime: Any = runtime
        self.engine: Any = runtime.deserialize_cuda_engine(content)
        if self.engine is None:
            raise CompileError(
                f"{edition.title} {self.trt.__version__} cannot load {path.name}, which was built by another version or "
                f"for another GPU, or is damaged: {reason(self.logger)}: compile again on this machine"
            )

    def _admit(self, runtime: Any, content: bytes, name: str) -> None:
        """Refuse an engine that does not fit before the runtime loads it, where the edition can tell."""

    def context(self) -> Any:
        """Execution context of one concurrent inference, including activations."""
        return granted(self.engine.create_execution_context(), self.logger, "no execution context")

    def close(self) -> None:
        """Free the engine before its runtime."""
        self.engine = None
        self._runtime = None


@dataclass(frozen=True)
class _Queued:
    """An inference in a stream of its own."""

    start: Callable[[], None]
    wait: Callable[[], None]
    fetch: Callable[[], list[NDArray[np.generic]]]

    def request(self) -> Request:
        """Request that can be started and awaited separately."""
        return Request(partial(_all, [self.start, self.wait]), self.fetch)


class TensorRTEngine(Engine):
    """One engine at one batch size."""

    def __init__(
        self,
        loaded: Deserialized,
        saved: EngineSpec,
        outputs: Sequence[str],
        batch: int,
        target: Target,
        flags: Mapping[str, FlagValue],
    ) -> None:
        super().__init__(target.precision, flags)
        self._loaded = loaded
        self._inputs = {spec.name: spec for spec in saved.inputs}
        self._outputs = dict(zip(outputs, saved.outputs, strict=True))
        self._batch = batch
        self._inside = target.transfers == "inside"
        self._name = loaded.edition.compiler
        self._graphs = bool(flags["cuda_graph"]) and not loaded.records_itself
        self._requests = int(str(flags["requests"]))
        # Made here, because it is part of what loading costs.
        self._contexts = [loaded.context() for _ in range(self._requests)]
        self._bound = 0
        self._closing: list[Callable[[], None]] = []

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        queued = [self._queue(inputs) for _ in range(self._requests)]
        relay = RequestQueue([inference.start for inference in queued], [inference.wait for inference in queued])
        singly = tuple(inference.request() for inference in queued)
        stream = relay.stream if self._requests > 1 else None
        return Invocation(relay.run, queued[-1].fetch, self._requests, singly, stream)

    def _queue(self, inputs: Sequence[NDArray[np.generic]]) -> _Queued:
        """Create an inference with its own context, stream and memory."""
        stream = cuda.Stream()
        self._closing.append(stream.close)
        context = self._next_context()
        sources = self._place_inputs(context, inputs)
        results = self._place_outputs(context)
        for tensor in sources:
            tensor.upload(stream)
        stream.synchronize()
        execute = partial(self._execute, context.execute_async_v3, stream.handle)
        if self._inside:
            steps = [partial(tensor.upload, stream) for tensor in sources]
            steps += [execute, *(partial(tensor.download, stream) for tensor in results)]
            work = partial(_all, steps)
        else:
            work = execute
        start = self._recorded(stream, work) if self._graphs else work
        return _Queued(start, stream.synchronize, partial(self._fetch, results, stream))

    def _next_context(self) -> Any:
        """Take a context made at load time, or make another one for further bindings."""
        if self._bound == len(self._contexts):
            self._contexts.append(self._loaded.context())
        self._bound += 1
        return self._contexts[self._bound - 1]

    def _place_inputs(self, context: Any, inputs: Sequence[NDArray[np.generic]]) -> list[cuda.Tensor]:
        tensors = []
        for (name, spec), array in zip(self._inputs.items(), inputs, strict=True):
            shape = spec.resolve(self._batch)
            self._grant(context.set_input_shape(name, shape), f"input {name} does not take shape {shape}")
            tensors.append(self._place(context, name, spec, shape))
            np.copyto(tensors[-1].host, array)
        return tensors

    def _place_outputs(self, context: Any) -> list[cuda.Tensor]:
        missing = context.infer_shapes()
        if missing:
            raise CompileError(f"{self._name}: no shape for {', '.join(missing)}")
        tensors = []
        for name, spec in self._outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            if any(size < 0 for size in shape):
                raise UnsupportedError(f"{self._name}: the shape of output {name} depends on the data: {shape}")
            tensors.append(self._place(context, name, spec, shape))
        return tensors

    def _place(self, context: Any, name: str, spec: TensorSpec, shape: Sequence[int]) -> cuda.Tensor:
        trt, engine = self._loaded.trt, self._loaded.engine
        dtype = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
        if dtype != np.dtype(spec.dtype):
            raise CompileError(f"{self._name}: {name} is {dtype} in the engine, and {spec.dtype} in the model")
        tensor = cuda.Tensor(shape, dtype)
        self._closing.append(tensor.close)
        self._grant(context.set_tensor_address(name, tensor.address), f"no address for {name}")
        return tensor

    def _execute(self, start: Callable[[int], bool], stream: int) -> None:
        if not start(stream):
            self._grant(None, "the engine does not run")

    def _recorded(self, stream: cuda.Stream, work: Callable[[], None]) -> Callable[[], None]:
        """Record a CUDA graph, after one run: the first run of a shape does other work."""
        work()
        stream.synchronize()
        try:
            graph = stream.capture(work)
        except (cuda.CudaError, CompileError) as error:
            raise UnsupportedError(f"{self._name}: this engine cannot be recorded as a CUDA graph: {error}") from error
        self._closing.append(graph.close)
        return graph.launch

    def _fetch(self, results: Sequence[cuda.Tensor], stream: cuda.Stream) -> list[NDArray[np.generic]]:
        if not self._inside:
            for tensor in results:
                tensor.download(stream)
            stream.synchronize()
        return [tensor.host.copy() for tensor in results]

    def _grant(self, answer: Any, what: str) -> None:
        granted(answer, self._loaded.logger, what)

    def close(self) -> None:
        closing, self._closing = self._closing, []
        # Graphs and memory before the streams that they belong to.
        for close in reversed(closing):
            close()
        self._contexts.clear()
        self._loaded.close()


def _all(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()
