"""ONNX Runtime with its execution providers."""

from mlflow_ngraph.compilers.onnxruntime.adapter import OnnxRuntime, OnnxRuntimeFlags

__all__ = ["OnnxRuntime", "OnnxRuntimeFlags"]
