"""The adapter for OpenVINO and its flags: saves an IR, compiled when loaded, a compiled blob, or both."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from mlflow_ngraph.compilers import onnx_graph
from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Mode,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import SEVEN_BITS, isa, package
from mlflow_ngraph.compilers.openvino.library import TELEMETRY, core, library, optional, text
from mlflow_ngraph.compilers.reasons import errors_as_limits, translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format, TensorSpec

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_PRECISIONS: dict[str, Precision] = {hint: precision for precision, hint in _HINTS.items()}
_CORES = {"any": "ANY_CORE", "pcore": "PCORE_ONLY", "ecore": "ECORE_ONLY"}
_CORE_TYPES = {value: name for name, value in _CORES.items()}
_FREE = -1
"""A size that is known at run time only."""


class OpenVINOFlags(Flags):
    """Options of OpenVINO."""

    performance_hint: Literal["latency", "throughput"] | None = None
    """Goal of the choice of streams and threads; by default ``latency`` in sync and ``throughput`` in async mode."""
    num_streams: int | None = Field(None, ge=1)
    """Inferences that run at the same time, each on its share of the threads; by default what the hint gives."""
    requests: int | None = Field(None, ge=1)
    """Inferences in flight in async mode; by default as many as the runtime calls optimal. One in sync mode."""
    enable_cpu_pinning: bool | None = None
    """Bind threads to processors; by default the runtime decides."""
    enable_hyper_threading: bool | None = None
    """Use both threads of a core; by default the runtime decides."""
    scheduling_core_type: Literal["any", "pcore", "ecore"] | None = None
    """Cores to use of a processor with two kinds: any, performance or efficient ones; by default the runtime
    decides."""
    dynamic_batch: bool = False
    """Keep the batch axis free when compiling; by default the model is reshaped to each batch size."""
    save: Literal["ir", "blob", "both"] = "ir"
    """Content of an engine: the ``ir``, compiled when it is loaded; a compiled ``blob`` for each batch size,
    which loads faster, on an equal machine with the same version only; or ``both``, the IR being what is loaded where
    the blob cannot be."""


class OpenVINO(Compiler[OpenVINOFlags]):
    """Converts ONNX to an IR once; compiles it for a batch size and this CPU, now or at load time."""

    name: ClassVar[str] = "openvino"
    summary: ClassVar[str] = "Intel's OpenVINO with its CPU plugin"
    flags_type: ClassVar[type[Flags]] = OpenVINOFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "bf16", "fp16")
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")
    runtime_modules: ClassVar[tuple[str, ...]] = ("openvino",)
    compile_modules: ClassVar[tuple[str, ...] | None] = ("openvino", "onnx")
    blocked_modules: ClassVar[tuple[str, ...]] = (TELEMETRY,)
    reuses_threads: ClassVar[bool] = True
    widest_integer: ClassVar[str | None] = "int32"
    unchecked_requirements: ClassVar[tuple[str, ...]] = ("runtime_requirements",)

    @classmethod
    def availability(cls) -> Availability:
        return package("openvino", "openvino", "pip install openvino")

    @property
    def expected_compile_s(self) -> float:
        return 2.0

    def requires(self, target: Target) -> dict[str, str]:
        requirements = {"openvino": self.availability().version or ""}
        return requirements if self.flags.save == "ir" else {**requirements, "isa": isa()}

    def known_cause(self, source: Source, batch: int, target: Target) -> str:
        cause = onnx_graph.saturation(source.onnx(batch))
        return cause and f"{cause}; {SEVEN_BITS}"

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        if self.flags.save != "ir":
            raise UnsupportedError(f"openvino compiles blobs for this machine alone: build for {device} with save=ir")

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)]

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        shared = source.dynamic("onnx")
        dynamic = self.flags.dynamic_batch and shared
        facts: dict[str, FlagValue] = {**self._config(target), "shared": shared, "blob_made_by": _maker()}
        with translated_errors(self.name), tempfile.TemporaryDirectory() as passing:
            irs = Path(passing) if self.flags.save == "blob" else directory
            for batch in [None] if shared else batch_sizes:
                self._convert(source.onnx(batch), irs / _file(batch, "xml"), bench)
            for batch in batch_sizes[:1] if dynamic else batch_sizes:
                # Compiled here so that failures and their cost are known, and again when an IR is loaded.
                with bench.stage("compile"), errors_as_limits(self.name):
                    ir = irs / _file(None if shared else batch, "xml")
                    compiled = self._compiled(ir, batch, shared, source.inputs, self._config(target))
                if self.flags.save != "ir":
                    with bench.stage("save"):
                        _export(compiled, directory / _file(None if dynamic else batch, "blob"))
            in_force = self._in_force(compiled, shared, target)
            requirements = optional(compiled, "RUNTIME_REQUIREMENTS")
        _precision(in_force, target)
        with bench.stage("save"):
            facts["nodes"] = len(onnx_graph.nodes(onnx_graph.read(source.onnx(None if shared else batch_sizes[0]))))
        requires = self.requires(target)
        if requirements is not None:
            requires["runtime_requirements"] = str(requirements)
        build = Build(in_force, requires, "onnx")
        EngineSpec.of(self, build, source, batch_sizes, target, facts).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        from mlflow_ngraph.compilers.openvino.running import OpenVINOEngine

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        with translated_errors(self.name):
            compiled, opened = self._opened(directory, batch, saved, self._config(target))
            flags = {**self._in_force(compiled, bool(saved.facts["shared"]), target), **opened}
        return OpenVINOEngine(compiled, _precision(flags, target), flags, saved.inputs, target.mode)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.openvino.inspection import PROFILED, explain

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        with translated_errors(self.name):
            config = {**self._config(target), **PROFILED}
            compiled, opened = self._opened(directory, batch, saved, config)
            in_force = self._in_force(compiled, bool(saved.facts["shared"]), target)
            said = {**in_force, **opened}
            facts = {name: str(said[name]) for name in ("loaded_from", "inference_precision")}
            return explain(compiled, saved.inputs, batch, int(str(saved.facts["nodes"])), facts)

    def _convert(self, model: Path, ir: Path, bench: Workbench) -> None:
        ov = library()
        with bench.stage("convert"), errors_as_limits(self.name, model):
            converted = core().read_model(str(model))
        with bench.stage("save"):
            # The default would round the weights to 16 bits.
            ov.save_model(converted, ir, compress_to_fp16=False)

    def _opened(
        self, directory: Path, batch: int, saved: EngineSpec, config: Mapping[str, FlagValue]
    ) -> tuple[Any, dict[str, FlagValue]]:
        """Load an engine, and tell a blob from a compiled IR.

        Raises `CompileError` if the only file is a blob that does not fit.
        """
        shared = bool(saved.facts["shared"])
        refused: str | None = None
        if self.flags.save != "ir":
            blob = directory / _file(None if self.flags.dynamic_batch and shared else batch, "blob")
            try:
                compiled = _import(blob, config, str(saved.facts["blob_made_by"]))
                return compiled, {"loaded_from": "blob", "blob_refused": None}
            except _BlobRefusedError as refusal:
                refused = str(refusal)
        if self.flags.save == "blob":
            raise CompileError(f"{directory} holds a compiled blob that cannot be used here: {refused}")
        ir = directory / _file(None if shared else batch, "xml")
        compiled = self._compiled(ir, batch, shared, saved.inputs, config)
        return compiled, {"loaded_from": "ir", "blob_refused": refused}

    def _compiled(
        self, ir: Path, batch: int, shared: bool, inputs: Sequence[TensorSpec], config: Mapping[str, FlagValue]
    ) -> Any:
        from mlflow_ngraph.compilers.openvino.running import places

        ov = library()
        model = core().read_model(str(ir))
        axis = _FREE if shared and self.flags.dynamic_batch else batch
        shapes = [ov.PartialShape(list(spec.resolve(axis))) for spec in inputs]
        input_places = places(model.inputs, inputs)
        model.reshape({port: shapes[place] for port, place in zip(model.inputs, input_places, strict=True)})
        return core().compile_model(model, "CPU", dict(config))

    def _config(self, target: Target) -> dict[str, FlagValue]:
        """Runtime configuration. Without a precision hint CPUs that support bf16 use it silently."""
        hint = self.flags.performance_hint or ("latency" if target.mode == "sync" else "throughput")
        core_type = self.flags.scheduling_core_type
        config: dict[str, FlagValue] = {
            "INFERENCE_PRECISION_HINT": _HINTS[target.precision],
            "PERFORMANCE_HINT": hint.upper(),
            "INFERENCE_NUM_THREADS": target.threads,
            "NUM_STREAMS": self.flags.num_streams,
            # Without it the throughput hint makes streams for more requests than there are.
            "PERFORMANCE_HINT_NUM_REQUESTS": self.flags.requests if target.mode == "async" else None,
            "ENABLE_CPU_PINNING": self.flags.enable_cpu_pinning,
            "ENABLE_HYPER_THREADING": self.flags.enable_hyper_threading,
            "SCHEDULING_CORE_TYPE": core_type and _CORES[core_type],
        }
        return {key: value for key, value in config.items() if value is not None}

    def _in_force(self, compiled: Any, shared: bool, target: Target) -> dict[str, FlagValue]:
        core_type = text(compiled.get_property("SCHEDULING_CORE_TYPE"))
        return {
            "performance_hint": text(compiled.get_property("PERFORMANCE_HINT")).lower(),
            "num_streams": int(compiled.get_property("NUM_STREAMS")),
            "enable_cpu_pinning": bool(compiled.get_property("ENABLE_CPU_PINNING")),
            "enable_hyper_threading": bool(compiled.get_property("ENABLE_HYPER_THREADING")),
            "scheduling_core_type": _CORE_TYPES.get(core_type, core_type.lower()),
            "dynamic_batch": self.flags.dynamic_batch and shared,
            "save": self.flags.save,
            "inference_precision": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
            "execution_mode": text(compiled.get_property("EXECUTION_MODE_HINT")).lower(),
            "threads": int(compiled.get_property("INFERENCE_NUM_THREADS")),
            "requests": self._requests(compiled, target.mode),
        }

    def _requests(self, compiled: Any, mode: Mode) -> int:
        if mode == "sync":
            return 1
        return self.flags.requests or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))


def _file(batch: int | None, suffix: str) -> str:
    return f"model{'' if batch is None else f'-b{batch}'}.{suffix}"


def _precision(flags: Mapping[str, FlagValue], target: Target) -> Precision:
    """Check that the effective precision is the requested one."""
    element_type = str(flags["inference_precision"])
    if _PRECISIONS.get(element_type) != target.precision:
        raise UnsupportedError(f"openvino computes in {element_type} on this CPU when asked for {target.precision}")
    return target.precision


class _BlobRefusedError(Exception):
    """A blob cannot be used here; the message gives the reason."""


def _maker() -> str:
    """OpenVINO version and instruction sets, which importing a blob must match."""
    return f"{library().get_version()} on {isa()}"


def _export(compiled: Any, path: Path) -> None:
    stream = io.BytesIO()
    compiled.export_model(stream)
    path.write_bytes(stream.getbuffer())


def _import(path: Path, config: Mapping[str, FlagValue], made_by: str) -> Any:
    """Import a compiled model with its original configuration; ``made_by`` is the `_maker` of its export.

    Raises `_BlobRefusedError` if version or instruction sets differ, or it is damaged.
    """
    # Newer runtimes also check this by themselves; those of 2025 put nothing into a blob that they could check.
    if made_by != _maker():
        raise _BlobRefusedError(f"it was compiled by OpenVINO {made_by}, this is {_maker()}")
    import numpy as np

    ov = library()
    try:
        content = ov.Tensor(np.memmap(path, dtype=np.uint8, mode="r"))
        return core().import_model(content, "CPU", dict(config))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise _BlobRefusedError(one_line(error)) from error
