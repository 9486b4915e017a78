"""ONNX Runtime: graph optimisations once, saved, and its CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import psutil
from pydantic import Field

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    Invocation,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.host import isa, package
from mlflow_ngraph.compilers.reasons import reported
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.base import BATCH, Format, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

_PROVIDERS = ["CPUExecutionProvider"]
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_ERRORS_ONLY = 3


class OnnxRuntimeFlags(Flags):
    """Options of ONNX Runtime."""

    graph_optimization_level: Literal["none", "basic", "extended", "all"] = "all"
    """Graph rewrites: ``basic`` removes redundant nodes, ``extended`` fuses, ``all`` also changes layouts (NCHWc)."""
    inter_op_threads: int = Field(1, ge=1)
    """Nodes that may run at the same time; more than 1 runs independent branches in parallel."""
    spinning: bool = True
    """Whether idle worker threads spin before they sleep: a little faster alone, much slower on a busy machine."""
    memory_pattern: bool = True
    """Plan all activations in one block at the first run; needs fixed shapes, which a bound engine has."""
    save_format: Literal["onnx", "ort"] = "onnx"
    """The optimised model's file format: ``onnx`` with weights beside it, or ``ort`` (one file, at most 2 GB)."""
    dynamic_batch: bool = True
    """Optimise once for every batch size, where the model's batch axis is free; else once for each."""


class OnnxRuntime(Compiler[OnnxRuntimeFlags]):
    """Optimises the ONNX graph once and saves it; loads the saved graph with every optimisation off."""

    name: ClassVar[str] = "onnxruntime"
    summary: ClassVar[str] = "ONNX Runtime with its CPU kernels, graph optimised ahead of time"
    flags_type: ClassVar[type[Flags]] = OnnxRuntimeFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    runtime_modules: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    @classmethod
    def availability(cls) -> Availability:
        return package("onnxruntime", "onnxruntime", "pip install onnxruntime")

    @property
    def expected_compile_s(self) -> float:
        return 1.0

    def requires(self, target: Target) -> dict[str, str]:
        return {"onnxruntime": self.availability().version or "", "isa": isa()}

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        dynamic = self.flags.dynamic_batch and source.dynamic("onnx")
        for batch in [None] if dynamic else batch_sizes:
            model = source.onnx(batch)
            with reported(self.name), bench.stage("compile"):
                self._optimise(model, source.inputs, batch, target, directory / self._file(batch))
        with bench.stage("save"):
            Saved.of(self.name, source, target, {"dynamic_batch": dynamic}).write(directory)
        return Build({**self.flags.model_dump(), "dynamic_batch": dynamic}, self.requires(target), "onnx")

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = Saved.read(directory, self.name, target)
        dynamic = bool(saved.facts["dynamic_batch"])
        path = directory / self._file(None if dynamic else batch)
        if not path.is_file():
            raise CompileError(f"{directory} holds no engine for batch size {batch}")
        with reported(self.name):
            return _OnnxRuntimeEngine(path, saved, batch, self.flags, self._options(target))

    def _file(self, batch: int | None) -> str:
        return f"model{'' if batch is None else f'-b{batch}'}.{self.flags.save_format}"

    def _options(self, target: Target) -> Any:
        """Session options for loading: what was optimised ahead of time is not optimised again."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = target.threads or 0
        options.inter_op_num_threads = self.flags.inter_op_threads
        if self.flags.inter_op_threads > 1:
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.enable_mem_pattern = self.flags.memory_pattern
        spinning = "1" if self.flags.spinning else "0"
        options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
        return options

    def _optimise(
        self, model: Path, inputs: Sequence[TensorSpec], batch: int | None, target: Target, path: Path
    ) -> None:
        """Creating a session optimises the graph and writes the result."""
        import onnxruntime as ort

        options = self._options(target)
        level = _LEVELS[self.flags.graph_optimization_level]
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(path)
        if self.flags.save_format == "ort":
            options.add_session_config_entry("session.save_model_format", "ORT")
        else:
            # Beside the graph, because a protobuf file ends at 2 GB.
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", f"{path.stem}.weights"
            )
        if batch is not None:
            for symbol in _batch_symbols(model, inputs):
                options.add_free_dimension_override_by_name(symbol, batch)
        ort.InferenceSession(str(model), options, providers=_PROVIDERS)


def _batch_symbols(model: Path, inputs: Sequence[TensorSpec]) -> set[str]:
    """The names that the ONNX file gives its batch axis, if it is free."""
    import onnx

    specs = {spec.name: spec for spec in inputs}
    graph = onnx.load(str(model), load_external_data=False).graph
    return {
        dim.dim_param
        for value in graph.input
        if value.name in specs
        for dim, size in zip(value.type.tensor_type.shape.dim, specs[value.name].shape, strict=True)
        if size == BATCH and dim.dim_param
    }


class _OnnxRuntimeEngine(Engine):
    def __init__(self, path: Path, saved: Saved, batch: int, flags: OnnxRuntimeFlags, options: Any) -> None:
        import onnxruntime as ort

        before = psutil.Process().num_threads()
        self._session = ort.InferenceSession(str(path), options, providers=_PROVIDERS)
        started = psutil.Process().num_threads() - before
        self._saved = saved
        self._batch = batch
        in_force = self._session.get_session_options()
        super().__init__(
            saved.precision,
            {
                **flags.model_dump(),
                "dynamic_batch": saved.facts["dynamic_batch"],
                "inter_op_threads": in_force.inter_op_num_threads,
                "memory_pattern": in_force.enable_mem_pattern,
                "providers": ",".join(self._session.get_providers()),
                # The runtime does not tell how many threads its own default is; it starts one fewer than it uses.
                "threads": in_force.intra_op_num_threads or started + 1,
            },
        )

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        import onnxruntime as ort

        binding = self._session.io_binding()
        arrays = dict(zip((spec.name for spec in self._saved.inputs), inputs, strict=True))
        for node in self._session.get_inputs():
            binding.bind_ortvalue_input(node.name, _owned(arrays[node.name]))
        for node, spec in zip(self._session.get_outputs(), self._saved.outputs, strict=True):
            shape, dtype = spec.resolve(self._batch), np.dtype(spec.dtype)
            binding.bind_ortvalue_output(node.name, ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cpu"))
        call: Callable[[], object] = partial(self._session.run_with_iobinding, binding)
        return Invocation(call, lambda: [np.array(value.numpy()) for value in binding.get_outputs()])

    def close(self) -> None:
        with suppress(AttributeError):
            del self._session


def _owned(array: NDArray[np.generic]) -> Any:
    """The array in memory of the runtime's own allocator."""
    import onnxruntime as ort

    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu")
    value.update_inplace(np.ascontiguousarray(array))
    return value
