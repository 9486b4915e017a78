"""Options of the adapter for TensorRT for RTX."""

from __future__ import annotations

from typing import Literal

from mlflow_ngraph.compilers.tensorrt.flags import SharedFlags


class TensorRTRTXFlags(SharedFlags):
    """Options of TensorRT for RTX."""

    hardware_compatibility: Literal["same_compute_capability", "ampere_plus"] = "same_compute_capability"
    """Which GPUs load the engine: those of the same compute capability, or all since Ampere that the library knows."""
    kernel_specialization: Literal["eager", "lazy", "none"] = "eager"
    """When kernels are compiled for the sizes of an engine with a free batch size: before the first inference with them
    (``eager``), beside inferences with slower kernels (``lazy``, the library's own default), or never (``none``)."""
