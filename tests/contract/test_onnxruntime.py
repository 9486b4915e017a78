from typing import ClassVar

import pytest

from mlflow_ngraph.compilers.onnxruntime.build import installed
from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.on_gpu import OnGpu

pytestmark = pytest.mark.usefixtures("compilers")

BUILD = installed()


class TestOnnxRuntime(CompilerContract):
    compiler = "onnxruntime"
    other_flags: ClassVar = {
        "provider": "cpu",
        "graph_optimization_level": "basic",
        "inter_op_threads": 2,
        "spinning": False,
        "pinning": False,
        "memory_pattern": False,
        "memory_arena": False,
        "precise_int8": True,
        "save_format": "ort",
        "dynamic_batch": False,
        "cudnn_conv_algo_search": "heuristic",
        "cuda_graph": True,
        "requests": 3,
    }
    never_imported = ("torch", "timm", "onnx")


@pytest.mark.skipif(
    BUILD is None or BUILD.package != "onnxruntime-openvino", reason="onnxruntime-openvino is not installed"
)
class TestOnnxRuntimeWithOpenVINO(TestOnnxRuntime):
    flags: ClassVar = {"provider": "openvino"}
    # The first is that of another provider, the second goes with the CPU's alone.
    other_meaning = ("provider", "save_format")


@pytest.mark.skipif(BUILD is None or BUILD.package != "onnxruntime-gpu", reason="onnxruntime-gpu is not installed")
class TestOnnxRuntimeOnGpu(OnGpu, TestOnnxRuntime):
    """With the CUDA provider, which the accelerator calls for."""

    # The first is that of another provider, the second goes with the CPU's alone.
    other_meaning = ("provider", "save_format")
