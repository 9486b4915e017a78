"""NVIDIA TensorRT for RTX. See `mlflow_ngraph.compilers.tensorrt_rtx.adapter`."""

from mlflow_ngraph.compilers.tensorrt_rtx.adapter import TensorRTRTX

__all__ = ["TensorRTRTX"]
