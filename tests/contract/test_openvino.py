from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]


class TestOpenVINO(CompilerContract):
    compiler = "openvino"
    other_flags: ClassVar = {
        "performance_hint": "throughput",
        "num_streams": 2,
        "requests": 3,
        "enable_cpu_pinning": False,
        "enable_hyper_threading": True,
        "scheduling_core_type": "pcore",
        "dynamic_batch": True,
        "save": "both",
    }
    never_imported = ("torch", "timm", "onnx")


class TestOpenVINOBlobs(TestOpenVINO):
    flags: ClassVar = {"save": "blob"}
    cycles = 80
