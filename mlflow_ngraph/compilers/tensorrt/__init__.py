"""NVIDIA TensorRT, versions 10 and 11. See `mlflow_ngraph.compilers.tensorrt.adapter`."""

from mlflow_ngraph.compilers.tensorrt.adapter import TensorRT

__all__ = ["TensorRT"]
