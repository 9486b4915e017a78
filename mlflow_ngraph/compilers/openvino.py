"""OpenVINO on the CPU: an IR on disk, compiled for the machine when it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Invocation,
    Mode,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.host import package
from mlflow_ngraph.compilers.reasons import reported
from mlflow_ngraph.compilers.saved import Saved
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import BATCH, Format, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_TELEMETRY = "openvino_telemetry"
"""Importing OpenVINO forks a process that reports the use to a web service, unless this module is missing."""
_FREE = -1
"""A size that is known at run time only."""
_PRECISIONS: dict[str, Precision] = {hint: precision for precision, hint in _HINTS.items()}


class OpenVINOFlags(Flags):
    """Options of OpenVINO."""

    performance_hint: Literal["latency", "throughput"] | None = None
    """What to configure streams and threads for; by default ``latency`` in sync and ``throughput`` in async mode."""
    num_streams: int | None = Field(None, ge=1)
    """Inferences that run at the same time, each on its share of the threads; by default what the hint gives."""
    enable_cpu_pinning: bool | None = None
    """Bind threads to processors; by default the runtime decides."""
    enable_hyper_threading: bool | None = None
    """Use both threads of a core; by default the runtime decides."""
    dynamic_batch: bool = False
    """Keep the batch axis free when compiling; by default the model is reshaped to each batch size."""


class OpenVINO(Compiler[OpenVINOFlags]):
    """Converts ONNX to an IR once; compiles it for a batch size and the machine's own CPU at load time."""

    name: ClassVar[str] = "openvino"
    summary: ClassVar[str] = "Intel's OpenVINO with its CPU plugin"
    flags_type: ClassVar[type[Flags]] = OpenVINOFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "bf16", "fp16")
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")
    runtime_modules: ClassVar[tuple[str, ...]] = ("openvino",)
    blocked_modules: ClassVar[tuple[str, ...]] = (_TELEMETRY,)

    @classmethod
    def availability(cls) -> Availability:
        return package("openvino", "openvino", "pip install openvino")

    @property
    def expected_compile_s(self) -> float:
        return 2.0

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        ov = _runtime()
        core = ov.Core()
        shared = source.dynamic("onnx")
        with reported(self.name):
            for batch in [None] if shared else batch_sizes:
                with bench.stage("convert"):
                    model = core.read_model(str(source.onnx(batch)))
                with bench.stage("save"):
                    # The default would round the weights to 16 bits.
                    ov.save_model(model, directory / _file(batch), compress_to_fp16=False)
            for batch in batch_sizes:
                # Compiled here so that failures and their cost are known, and again when the engine is loaded.
                with bench.stage("compile"):
                    compiled = self._compiled(directory, batch, shared, source.inputs, target)
        with bench.stage("save"):
            Saved.of(self.name, source, target, {**self._config(target), "shared": shared}).write(directory)
        requires = self.requires(target)
        requirements = _read(compiled, "RUNTIME_REQUIREMENTS")
        if requirements is not None:
            requires["runtime_requirements"] = str(requirements)
        flags = self._in_force(compiled, shared, target)
        _precision(flags, target)
        return Build(flags, requires, "onnx")

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        self.check(target)
        saved = Saved.read(directory, self.name, target)
        shared = bool(saved.facts["shared"])
        with reported(self.name):
            compiled = self._compiled(directory, batch, shared, saved.inputs, target)
            flags = self._in_force(compiled, shared, target)
        return _OpenVINOEngine(compiled, _precision(flags, target), flags, saved.inputs, target.mode)

    def _compiled(self, directory: Path, batch: int, shared: bool, inputs: Sequence[TensorSpec], target: Target) -> Any:
        ov = _runtime()
        core = ov.Core()
        model = core.read_model(str(directory / _file(None if shared else batch)))
        shapes: dict[str, Sequence[int]] = {spec.name: spec.resolve(batch) for spec in inputs}
        if shared and self.flags.dynamic_batch:
            shapes = {spec.name: [_FREE if size == BATCH else int(size) for size in spec.shape] for spec in inputs}
        model.reshape({port: ov.PartialShape(list(shapes[_name(port, shapes)])) for port in model.inputs})
        return core.compile_model(model, "CPU", self._config(target))

    def _config(self, target: Target) -> dict[str, FlagValue]:
        """Without a precision hint the runtime computes in bf16 on CPUs that can, and does not say so."""
        hint = self.flags.performance_hint or ("latency" if target.mode == "sync" else "throughput")
        config: dict[str, FlagValue] = {
            "INFERENCE_PRECISION_HINT": _HINTS[target.precision],
            "PERFORMANCE_HINT": hint.upper(),
            "INFERENCE_NUM_THREADS": target.threads,
            "NUM_STREAMS": self.flags.num_streams,
            "ENABLE_CPU_PINNING": self.flags.enable_cpu_pinning,
            "ENABLE_HYPER_THREADING": self.flags.enable_hyper_threading,
        }
        return {key: value for key, value in config.items() if value is not None}

    def _in_force(self, compiled: Any, shared: bool, target: Target) -> dict[str, FlagValue]:
        """The flags and what the runtime says of itself."""
        return {
            "performance_hint": _text(compiled.get_property("PERFORMANCE_HINT")).lower(),
            "num_streams": int(compiled.get_property("NUM_STREAMS")),
            "enable_cpu_pinning": bool(compiled.get_property("ENABLE_CPU_PINNING")),
            "enable_hyper_threading": bool(compiled.get_property("ENABLE_HYPER_THREADING")),
            "dynamic_batch": self.flags.dynamic_batch and shared,
            "inference_precision": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
            "execution_mode": _text(compiled.get_property("EXECUTION_MODE_HINT")).lower(),
            "threads": int(compiled.get_property("INFERENCE_NUM_THREADS")),
            "requests": _requests(compiled, target.mode),
        }


def _runtime() -> Any:
    """The runtime's module, without its telemetry; also where nobody blocked that before."""
    sys.modules.setdefault(_TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


def _file(batch: int | None) -> str:
    return "model.xml" if batch is None else f"model-b{batch}.xml"


def _text(value: Any) -> str:
    """The bare name of an enumeration's value, such as ``LATENCY``."""
    return f"{value}".rpartition(".")[2]


def _read(compiled: Any, name: str) -> object | None:
    """A property that not every version of the runtime has."""
    if name not in compiled.get_property("SUPPORTED_PROPERTIES"):
        return None
    value: object = compiled.get_property(name)
    return value


def _precision(flags: Mapping[str, FlagValue], target: Target) -> Precision:
    """The precision that took effect, which has to be the one that was asked for."""
    found = str(flags["inference_precision"])
    if _PRECISIONS.get(found) != target.precision:
        raise UnsupportedError(f"openvino computes in {found} on this CPU when asked for {target.precision}")
    return target.precision


def _requests(compiled: Any, mode: Mode) -> int:
    return int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")) if mode == "async" else 1


def _name(port: Any, known: Mapping[str, object]) -> str:
    """The workload's name of an input; a port can have several names."""
    names: list[str] = sorted(port.get_names())
    return next(name for name in names if name in known)


class _OpenVINOEngine(Engine):
    def __init__(
        self,
        compiled: Any,
        precision: Precision,
        flags: Mapping[str, FlagValue],
        inputs: Sequence[TensorSpec],
        mode: Mode,
    ) -> None:
        super().__init__(precision, flags)
        self._compiled = compiled
        self._inputs = inputs
        self._mode = mode

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        if self._mode == "sync":
            request = self._filled(self._compiled.create_infer_request(), inputs)
            # Shared outputs are views; the default would copy them at every call.
            infer: Callable[[], object] = partial(request.infer, share_outputs=True)
            return Invocation(infer, partial(self._outputs, request))
        count = int(str(self.flags["requests"]))
        requests = [self._filled(self._compiled.create_infer_request(), inputs) for _ in range(count)]
        starts = [request.start_async for request in requests]
        waits = [request.wait for request in requests]

        def call() -> None:
            for start in starts:
                start()
            for wait in waits:
                wait()

        return Invocation(call, partial(self._outputs, requests[-1]), count)

    def _filled(self, request: Any, inputs: Sequence[NDArray[np.generic]]) -> Any:
        """A request with the inputs in tensors of the runtime's own allocator."""
        ov = _runtime()
        arrays = dict(zip((spec.name for spec in self._inputs), inputs, strict=True))
        for index, port in enumerate(self._compiled.inputs):
            request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(arrays[_name(port, arrays)])))
        return request

    def _outputs(self, request: Any) -> list[NDArray[np.generic]]:
        return [np.array(request.get_output_tensor(index).data) for index in range(len(self._compiled.outputs))]

    def close(self) -> None:
        self._compiled = None
