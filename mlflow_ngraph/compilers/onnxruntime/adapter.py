"""The adapter for ONNX Runtime: graph optimisations ahead of time on the CPU, other providers when loading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from mlflow_ngraph.compilers import onnx_graph
from mlflow_ngraph.compilers.accelerator import require_gpu
from mlflow_ngraph.compilers.base import (
    Availability,
    Build,
    Compiler,
    Engine,
    Flags,
    FlagValue,
    Mode,
    Occupation,
    Precision,
    Target,
    Workbench,
)
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.host import SEVEN_BITS, isa, package
from mlflow_ngraph.compilers.onnxruntime import requests
from mlflow_ngraph.compilers.onnxruntime.build import installed
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags
from mlflow_ngraph.compilers.onnxruntime.opening import WITHOUT_GPU, Layout, Opener
from mlflow_ngraph.compilers.onnxruntime.providers import CPU, Provider, choose
from mlflow_ngraph.compilers.onnxruntime.session import create, naming_types, options
from mlflow_ngraph.compilers.reasons import errors_as_limits, translated_errors
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import CompileError, UnsupportedError
from mlflow_ngraph.workloads.base import Format

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source


class OnnxRuntime(Compiler[OnnxRuntimeFlags]):
    """Saves the graph optimised for the CPU; other providers compile when the engine is loaded."""

    name: ClassVar[str] = "onnxruntime"
    summary: ClassVar[str] = "ONNX Runtime with its CPU kernels, OpenVINO, CUDA or TensorRT"
    flags_type: ClassVar[type[Flags]] = OnnxRuntimeFlags
    formats: ClassVar[tuple[Format, ...]] = ("onnx",)
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16", "fp16")
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")
    accelerators: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    runtime_modules: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    compile_modules: ClassVar[tuple[str, ...] | None] = ("onnxruntime", "onnx")

    @classmethod
    def availability(cls) -> Availability:
        availability, build = package("onnxruntime", "onnxruntime", "pip install onnxruntime"), installed()
        return Availability(True, build.version) if availability.available and build else availability

    @property
    def occupies(self) -> Occupation:
        # TensorRT chooses kernels by timing them, here as elsewhere.
        return "machine" if self.flags.provider == "tensorrt" else "processor"

    @property
    def expected_compile_s(self) -> float:
        return {"tensorrt": 60.0, "openvino": 2.0, "cuda": 3.0}.get(self.flags.provider or "", 1.0)

    def requires(self, target: Target) -> dict[str, str]:
        build = installed()
        requirements = {
            "onnxruntime": self.availability().version or "",
            "onnxruntime_build": build.package if build else "unknown",
        }
        if target.accelerator == "cpu":
            return requirements if self._portable else {**requirements, "isa": isa()}
        gpu = probes.gpu()
        return {**requirements, "gpu": f"{gpu.name}, compute capability {gpu.compute_capability}" if gpu else "none"}

    @property
    def _portable(self) -> bool:
        """True if the saved graph is the same on all processors: without the layouts of the highest level."""
        return self.flags.provider in (None, "cpu") and self.flags.graph_optimization_level != "all"

    def known_cause(self, source: Source, batch: int, target: Target) -> str:
        fast = self.flags.provider in (None, "cpu") and target.accelerator == "cpu" and not self.flags.precise_int8
        cause = onnx_graph.saturation(source.onnx(batch)) if fast else ""
        return cause and f"{cause}; set precise_int8, or {SEVEN_BITS}"

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        if target.accelerator != "cpu" or self.flags.provider not in (None, "cpu"):
            raise UnsupportedError(
                "onnxruntime keeps nothing that a provider other than cpu compiles: nothing can be compiled here for "
                f"{device}"
            )
        if not self._portable:
            raise UnsupportedError(
                "onnxruntime saves a graph in the layouts of this machine's processor: build for "
                f"{device} with graph_optimization_level=extended"
            )

    def engines(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(batch_sizes)] if self.flags.dynamic_batch else [(batch,) for batch in batch_sizes]

    def check(self, target: Target) -> None:
        super().check(target)
        provider = choose(self.flags.provider, target)
        if provider.name != "cpu" and self.flags.save_format == "ort":
            raise UnsupportedError(
                f"save_format ort keeps what the cpu provider optimised; {provider.name} loads the model as onnx"
            )
        requests.check(provider.name, self.flags, target)
        if target.accelerator == "cuda":
            require_gpu(self.name, target)

    def compile(
        self, source: Source, batch_sizes: Sequence[int], target: Target, directory: Path, bench: Workbench
    ) -> Build:
        self.check(target)
        provider = choose(self.flags.provider, target)
        shared = self.flags.dynamic_batch and source.dynamic("onnx")
        dynamic = shared and provider.free_batch
        layout = Layout(directory, self.flags.save_format, shared)
        facts: dict[str, FlagValue] = {
            **WITHOUT_GPU,
            "provider": provider.name,
            "requests": requests.count(self.flags, target),
            "dynamic_batch": dynamic,
            "shared": shared,
        }
        with translated_errors(self.name):
            for batch in [None] if shared else batch_sizes:
                with bench.stage("save"):
                    graph = onnx_graph.read(source.onnx(batch))
                    symbols = onnx_graph.batch_symbols(graph, source.inputs)
                    onnx_graph.write_nodes(layout.source_nodes(batch), onnx_graph.nodes(graph))
                if provider.name == "cpu":
                    fixed = {} if batch is None else dict.fromkeys(symbols, batch)
                    with bench.stage("compile"):
                        self._optimise(source.onnx(batch), fixed, target, layout.model(batch))
                else:
                    with bench.stage("save"):
                        _keep(source.onnx(batch), layout.model(batch))
            if provider.name != "cpu":
                # A file whose batch axis is free, for a provider that cannot have it so.
                facts["symbols"] = "" if dynamic else ",".join(symbols)
                # Compiled here so that failures and their cost are known, and again when the engine is loaded.
                with bench.stage("compile"):
                    for batch in batch_sizes[:1] if dynamic else batch_sizes:
                        facts |= self._opener(directory, facts, target).open(batch).facts
        in_force = {name: value for name, value in facts.items() if name not in ("shared", "symbols")}
        build = Build({**self.flags.model_dump(), **in_force}, self.requires(target), "onnx")
        EngineSpec.of(self, build, source, batch_sizes, target, facts).write(directory)
        return build

    def load(self, directory: Path, batch: int, target: Target) -> Engine:
        from mlflow_ngraph.compilers.onnxruntime.running import OnnxRuntimeEngine

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        provider = choose(self.flags.provider, target)
        in_flight = requests.count(self.flags, target)
        with translated_errors(self.name):
            before = psutil.Process().num_threads()
            opened = self._opener(directory, saved.facts, target).open(batch)
            started = psutil.Process().num_threads() - before
        flags = {
            **self.flags.model_dump(),
            **opened.facts,
            "provider": provider.name,
            "dynamic_batch": saved.facts["dynamic_batch"],
            "requests": in_flight,
            "threads": _threads(opened.session, provider, target, started, in_flight),
        }
        return OnnxRuntimeEngine(opened.session, saved, batch, target, flags)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.onnxruntime.inspection import explain

        self.check(target)
        saved = EngineSpec.read_for(self, directory, target)
        with translated_errors(self.name):
            return explain(self._opener(directory, saved.facts, target), saved.inputs, batch)

    def _opener(self, directory: Path, facts: Mapping[str, FlagValue], target: Target) -> Opener:
        """Create the opener of the engine's files. Raises `CompileError` if they were compiled for another provider."""
        provider = choose(self.flags.provider, target)
        if facts["provider"] != provider.name:
            raise CompileError(
                f"{directory} was compiled for the provider {facts['provider']}, not for {provider.name}"
            )
        symbols = tuple(name for name in str(facts.get("symbols", "")).split(",") if name)
        suffix = self.flags.save_format
        return Opener(self.flags, provider, target, Layout(directory, suffix, bool(facts["shared"]), symbols))

    def _optimise(self, model: Path, sizes: Mapping[str, int], target: Target, path: Path) -> None:
        """Write the optimised graph, which creating a session does."""
        from mlflow_ngraph.workloads import onnx_file

        session_options = options(self.flags, target, self.flags.graph_optimization_level)
        session_options.optimized_model_filepath = str(path)
        in_one_file = self.flags.save_format == "onnx" and _has_bodies(model)
        if self.flags.save_format == "ort":
            session_options.add_session_config_entry("session.save_model_format", "ORT")
        elif not in_one_file:
            # Beside the graph, because a protobuf file ends at 2 GB. Those of a branch or a loop ONNX Runtime would not read
            # there: the files of an engine may be links to others.
            session_options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", f"{path.stem}.weights"
            )
        for symbol, size in sizes.items():
            session_options.add_free_dimension_override_by_name(symbol, size)
        with errors_as_limits(self.name, model), naming_types(self.name, model):
            create(model, session_options, [(CPU, {})])
        if in_one_file:
            # ONNX Runtime wrote where the source has its weights, not the weights.
            onnx_file.embed_external_data(path, model)


def _has_bodies(model: Path) -> bool:
    """True if a node has subgraphs, such as a branch or a loop."""
    import onnx

    nodes = onnx.load(str(model), load_external_data=False).graph.node
    return any(attribute.HasField("g") or attribute.graphs for node in nodes for attribute in node.attribute)


def _keep(source: Path, target: Path) -> None:
    """Copy a model with its weights, for a provider whose compiled graph cannot be saved."""
    from mlflow_ngraph.workloads.onnx_file import copy

    copy(source, target, {})


def _threads(session: Any, provider: Provider, target: Target, started: int, in_flight: int) -> int | None:
    """Threads of all concurrent inferences: the session's, and those that call it.

    The runtime does not report its default; it starts one fewer than it uses. OpenVINO within it reports nothing at
    all.
    """
    if provider.name == "openvino":
        return target.threads
    own = int(session.get_session_options().intra_op_num_threads) or started + 1
    # One of its own is the thread that calls; where a GPU computes, the others only wait.
    return own + (in_flight - 1 if target.accelerator == "cpu" else 0)
