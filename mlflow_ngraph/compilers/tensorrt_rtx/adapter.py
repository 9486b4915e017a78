"""The adapter for NVIDIA TensorRT for RTX: engines for GeForce and RTX GPUs, built without a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mlflow_ngraph.compilers.accelerator import architecture, require_architecture
from mlflow_ngraph.compilers.base import Flags, FlagValue, Target
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.tensorrt.family import (
    AMPERE,
    LISTED,
    NO_GPU,
    SINCE_AMPERE,
    TensorRTFamily,
    find,
    plan_facts,
)
from mlflow_ngraph.compilers.tensorrt.flags import SharedFlags
from mlflow_ngraph.compilers.tensorrt.library import Edition, granted, reason
from mlflow_ngraph.compilers.tensorrt.running import Deserialized
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import CompileError, UnsupportedError

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.tensorrt.building import Configuration

_TOLD = {
    "VERSION_MISMATCH": "another version of the library built it",
    "UNSUPPORTED_CC": "it was built for other GPUs than this one",
    "OLD_CUDA_DRIVER": "the driver of the GPU is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "it needs more memory than the GPU has",
    "MALFORMED_ENGINE": "it is no engine, or a damaged one",
    "CUDA_ERROR": "CUDA does not work here",
}
"""Reasons why the library refuses an engine."""

_LAYER = re.compile(
    r"^Name: (?P<Name>.*?), LayerType: (?P<LayerType>\w*), Inputs: .*, Outputs: (?P<outputs>\[.*?\]), "
    r"TacticName: (?P<TacticName>[^,]*), StreamId: \d+, Metadata: ?(?P<Metadata>.*)$"
)
_FORM = re.compile(r"Datatype: (?P<type>\w+), Format: (?P<format>\([^)]*\))")
_BETWEEN_NODES, _IN_JSON = "\x1f", "\x1e"
"""Separators of a layer's nodes, here and in the inspector's JSON."""


class TensorRTRTXFlags(SharedFlags):
    """Options of TensorRT for RTX."""

    hardware_compatibility: Literal["same_compute_capability", "ampere_plus"] = "same_compute_capability"
    """GPUs that load the engine: those of the same compute capability, or all since Ampere that the library knows."""
    kernel_specialization: Literal["eager", "lazy", "none"] = "eager"
    """Time of compiling kernels for the sizes of an engine with a free batch size: before the first inference with them
    (``eager``), beside inferences with slower kernels (``lazy``, the library's own default), or never (``none``)."""


class RTXConfiguration:
    """GPUs of one build: those of ``capability``, or with ``wide`` all since Ampere that the library knows.

    ``capability`` is None where there is no GPU.
    """

    def __init__(self, workspace_mib: int | None, capability: tuple[int, int] | None, *, wide: bool) -> None:
        self.workspace_mib = workspace_mib
        self._capability = capability
        self._wide = wide

    def apply(self, trt: Any, config: Any) -> None:
        if self._capability is None:
            return
        # The library builds for the GPU that it finds, whatever it is, and refuses to run what it built.
        known = self._known(trt, self._capability)
        if not self._wide:
            config.num_compute_capabilities = 1
            config.set_compute_capability(known, 0)

    def built(self, config: Any) -> None:
        """Do nothing: kernels are chosen on the GPU, when an engine is loaded."""

    def in_force(self, trt: Any, config: Any) -> dict[str, FlagValue]:
        count = int(config.num_compute_capabilities)
        named = [config.get_compute_capability(index).name for index in range(count)]
        return {"built_for": ",".join(named) or "all since Ampere"}

    @staticmethod
    def _known(trt: Any, capability: tuple[int, int]) -> Any:
        """The library's constant for a compute capability. Raises `UnsupportedError` if it has none."""
        wanted = "SM{}{}".format(*capability)
        known = {name: value for name, value in trt.ComputeCapability.__members__.items() if name.startswith("SM")}
        if wanted not in known:
            raise UnsupportedError(
                f"tensorrt-rtx {trt.__version__} has no engines for {wanted.lower()}: "
                f"it knows {', '.join(known).lower()}"
            )
        return known[wanted]


def information(listing: str) -> dict[str, Any]:
    """The layers in the inspector's JSON form, parsed from the builder's log."""
    return {"Layers": [_layer(match) for line in listing.splitlines() if (match := _LAYER.match(line))]}


def _layer(match: re.Match[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {name: match[name] for name in ("Name", "LayerType", "TacticName")}
    forms = [f"{form['type']} {form['format']}" for form in _FORM.finditer(match["outputs"])]
    layer["Outputs"] = [{"Format/Datatype": form} for form in forms]
    layer["Metadata"] = match["Metadata"].replace(_BETWEEN_NODES, _IN_JSON)
    return layer


class DeserializedRTX(Deserialized):
    """Configures contexts to record CUDA graphs, and when to compile kernels."""

    records_itself: ClassVar[bool] = True

    def __init__(self, edition: Edition, path: Path, flags: TensorRTRTXFlags) -> None:
        self._flags = flags
        super().__init__(edition, path)

    def _admit(self, runtime: Any, content: bytes, name: str) -> None:
        validity, diagnostics = runtime.get_engine_validity(content)
        if validity == self.trt.EngineValidity.INVALID:
            known = self.trt.EngineInvalidityDiagnostics.__members__.items()
            causes = [_TOLD.get(cause, cause) for cause, bit in known if diagnostics & bit.value]
            raise CompileError(
                f"{self.edition.title} {self.trt.__version__} cannot load {name}: "
                f"{' and '.join(causes) or reason(self.logger)}; compile again on this machine"
            )

    def context(self) -> Any:
        runtime_config = granted(self.engine.create_runtime_config(), self.logger, "no runtime configuration")
        strategies, graphs = self.trt.DynamicShapesKernelSpecializationStrategy, self.trt.CudaGraphStrategy
        runtime_config.dynamic_shapes_kernel_specialization_strategy = getattr(
            strategies, self._flags.kernel_specialization.upper()
        )
        runtime_config.cuda_graph_strategy = graphs.WHOLE_GRAPH_CAPTURE if self._flags.cuda_graph else graphs.DISABLED
        return granted(self.engine.create_execution_context(runtime_config), self.logger, "no execution context")


class TensorRTRTX(TensorRTFamily[TensorRTRTXFlags]):
    """Optimises the network ahead of time on any machine; the GPU compiles kernels when it loads an engine."""

    name: ClassVar[str] = "tensorrt-rtx"
    summary: ClassVar[str] = "NVIDIA TensorRT for RTX, which also builds engines without a GPU"
    flags_type: ClassVar[type[Flags]] = TensorRTRTXFlags
    edition: ClassVar[Edition] = Edition(
        "tensorrt-rtx",
        "TensorRT for RTX",
        # The first one loads the libraries that the second is bound to.
        ("tensorrt_rtx_libs", "tensorrt_rtx_bindings"),
        "tensorrt_rtx_cu13_bindings",
        "pip install --no-deps tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings (NVIDIA's licence, which is not free)",
        listing="Layers:",
    )
    runtime_modules: ClassVar[tuple[str, ...]] = (*edition.modules, "cuda.bindings.runtime")
    compile_modules: ClassVar[tuple[str, ...] | None] = (*edition.modules, "onnx")

    explains_elsewhere: ClassVar[bool] = True

    @property
    def expected_compile_s(self) -> float:
        return 15.0

    def _required_gpu(self, target: Target) -> str:
        capability = _capability(target)
        if capability is None:
            return NO_GPU
        if self.flags.hardware_compatibility == "ampere_plus" and capability >= AMPERE:
            return SINCE_AMPERE
        return "compute capability {}.{}".format(*capability)

    def check(self, target: Target) -> None:
        super().check(target)
        capability = _capability(target)
        if self.flags.hardware_compatibility == "ampere_plus" and capability is not None and capability < AMPERE:
            raise UnsupportedError(
                "tensorrt-rtx has no hardware_compatibility ampere_plus for GPUs of compute capability {}.{}".format(
                    *capability
                )
            )

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        if device.compute_capability is None:
            raise UnsupportedError(
                f"tensorrt-rtx has to know the architecture of the GPU of {device}: say it as in gpu:sm89"
            )
        require_architecture(self.name, target, device.compute_capability, f"{device} has less")

    def _configuration(self, target: Target) -> Configuration:
        wide = self.flags.hardware_compatibility == "ampere_plus"
        return RTXConfiguration(self.flags.workspace_mib, _capability(target), wide=wide)

    def _deserialized(self, plan: Path, saved: EngineSpec) -> Deserialized:
        return DeserializedRTX(self.edition, plan, self.flags)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.tensorrt.inspection import kernels

        saved = EngineSpec.read_for(self, directory, target)
        plan, said = find(directory, batch, saved)
        layers = kernels(information(plan.with_suffix(LISTED).read_text(encoding="utf-8")))
        return Explanation(
            nodes_before=said["nodes"], nodes_after=len(layers), kernels=layers, facts=plan_facts(plan, saved)
        )


def _capability(target: Target) -> tuple[int, int] | None:
    """Compute capability of the engine's GPU; None where there is no GPU."""
    if target.elsewhere is not None:
        return target.elsewhere.compute_capability
    gpu = probes.gpu()
    return architecture(gpu) if gpu is not None else None
