"""The adapter for NVIDIA TensorRT 10 and 11: engines for one GPU, built from ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mlflow_ngraph.compilers.accelerator import architecture
from mlflow_ngraph.compilers.base import Flags, Occupation, Target
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.compilers.tensorrt.family import AMPERE, NO_GPU, SINCE_AMPERE, TensorRTFamily
from mlflow_ngraph.compilers.tensorrt.flags import TensorRTFlags
from mlflow_ngraph.compilers.tensorrt.library import Edition
from mlflow_ngraph.devices import probes
from mlflow_ngraph.devices.build_target import BuildTarget
from mlflow_ngraph.errors import UnsupportedError

if TYPE_CHECKING:
    from mlflow_ngraph.compilers.tensorrt.building import Configuration
    from mlflow_ngraph.compilers.tensorrt.running import Deserialized


class TensorRT(TensorRTFamily[TensorRTFlags]):
    """Chooses kernels by timing them on the engine's GPU."""

    name: ClassVar[str] = "tensorrt"
    summary: ClassVar[str] = "NVIDIA TensorRT 10 and 11"
    flags_type: ClassVar[type[Flags]] = TensorRTFlags
    edition: ClassVar[Edition] = Edition(
        "tensorrt", "TensorRT", ("tensorrt",), "tensorrt", "pip install tensorrt (on a Jetson it comes with JetPack)"
    )
    runtime_modules: ClassVar[tuple[str, ...]] = ("tensorrt", "cuda.bindings.runtime")
    compile_modules: ClassVar[tuple[str, ...] | None] = ("tensorrt", "cuda.bindings.runtime", "onnx")

    @property
    def occupies(self) -> Occupation:
        return "machine"  # the builder chooses kernels by timing them

    @property
    def expected_compile_s(self) -> float:
        return 60.0

    def _required_gpu(self, target: Target) -> str:
        gpu = probes.gpu()
        if gpu is None:
            return NO_GPU
        if self.flags.hardware_compatibility == "ampere_plus" and architecture(gpu) >= AMPERE:
            return SINCE_AMPERE
        if self.flags.hardware_compatibility == "same_compute_capability":
            return f"compute capability {gpu.compute_capability}"
        return f"{gpu.name}, compute capability {gpu.compute_capability}"

    def check_elsewhere(self, target: Target, device: BuildTarget) -> None:
        raise UnsupportedError(
            f"tensorrt times kernels on the GPU that an engine is for: it cannot build here for {device}"
        )

    def _configuration(self, target: Target) -> Configuration:
        from mlflow_ngraph.compilers.tensorrt.configuration import ClassicConfiguration

        return ClassicConfiguration(self.flags)

    def _deserialized(self, plan: Path, saved: EngineSpec) -> Deserialized:
        from mlflow_ngraph.compilers.tensorrt.running import Deserialized

        return Deserialized(self.edition, plan, host_code=bool(saved.facts["version_compatible"]))
