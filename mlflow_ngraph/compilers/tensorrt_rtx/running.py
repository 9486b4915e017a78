"""Check and load an engine of TensorRT for RTX, and compile its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from mlflow_ngraph.compilers.tensorrt.library import Edition, granted, reason
from mlflow_ngraph.compilers.tensorrt.running import Deserialized
from mlflow_ngraph.compilers.tensorrt_rtx.flags import TensorRTRTXFlags
from mlflow_ngraph.errors import CompileError

_TOLD = {
    "VERSION_MISMATCH": "another version of the library built it",
    "UNSUPPORTED_CC": "it was built for other GPUs than this one",
    "OLD_CUDA_DRIVER": "the driver of the GPU is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "it needs more memory than the GPU has",
    "MALFORMED_ENGINE": "it is no engine, or a damaged one",
    "CUDA_ERROR": "CUDA does not work here",
}
"""What the library finds wrong with an engine, in words."""


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
