from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.on_gpu import OnGpu

pytestmark = pytest.mark.usefixtures("compilers")


class TestTensorRT(OnGpu, CompilerContract):
    compiler = "tensorrt"
    other_flags: ClassVar = {
        "dynamic_batch": True,
        "builder_optimization_level": 1,
        "workspace_mib": 256,
        "timing_cache": False,
        "version_compatible": True,
        "hardware_compatibility": "ampere_plus",
        "sparsity": True,
        "cuda_graph": True,
        "requests": 3,
    }
    never_imported = ("torch", "timm", "onnx")
