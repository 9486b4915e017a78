"""The adapter for NVIDIA TensorRT for RTX: engines for GeForce and RTX GPUs, built without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mlflow_ngraph.compilers.accelerator import architecture, require_architecture
from mlflow_ngraph.compilers.base import Flags, Target
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
from mlflow_ngraph.compilers.tensorrt.library import Edition
from mlflow_ngraph.compilers.tensorrt_rtx.flags import TensorRTRTXFlags
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import Elsewhere
from mlflow_ngraph.errors import UnsupportedError

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.tensorrt.building import Configuration
    from mlflow_ngraph.compilers.tensorrt.running import Deserialized


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

    def check_elsewhere(self, target: Target, device: Elsewhere) -> None:
        if device.compute_capability is None:
            raise UnsupportedError(
                f"tensorrt-rtx has to know the architecture of the GPU of {device}: say it as in gpu:sm89"
            )
        require_architecture(self.name, target, device.compute_capability, f"{device} has less")

    def _configuration(self, target: Target) -> Configuration:
        from mlflow_ngraph.compilers.tensorrt_rtx.configuration import RTXConfiguration

        wide = self.flags.hardware_compatibility == "ampere_plus"
        return RTXConfiguration(self.flags.workspace_mib, _capability(target), wide=wide)

    def _deserialized(self, plan: Path, saved: EngineSpec) -> Deserialized:
        from mlflow_ngraph.compilers.tensorrt_rtx.running import DeserializedRTX

        return DeserializedRTX(self.edition, plan, self.flags)

    def explain(self, directory: Path, batch: int, target: Target) -> Explanation:
        from mlflow_ngraph.compilers.tensorrt.inspection import kernels
        from mlflow_ngraph.compilers.tensorrt_rtx.inspection import information

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
