"""ONNX Runtime with its execution providers."""

from mlflow_ngraph.compilers.onnxruntime.adapter import OnnxRuntime
from mlflow_ngraph.compilers.onnxruntime.flags import OnnxRuntimeFlags

__all__ = ["OnnxRuntime", "OnnxRuntimeFlags"]
