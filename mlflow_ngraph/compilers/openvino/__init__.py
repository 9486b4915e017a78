"""OpenVINO on the CPU."""

from mlflow_ngraph.compilers.openvino.adapter import OpenVINO, OpenVINOFlags

__all__ = ["OpenVINO", "OpenVINOFlags"]
