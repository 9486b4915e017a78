from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.apart import OnTorch
from tests.support.on_gpu import OnGpu

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]


@pytest.mark.usefixtures("compilers")
class TestTorchCompile(OnTorch, CompilerContract):
    compiler = "torch-compile"
    other_flags: ClassVar = {
        "cudnn_benchmark": True,
        "dynamic_batch": False,
        "mode": "max-autotune",
        "gemm_backends": "aten",
        "freezing": True,
        "weight_prepack": False,
        "layout_optimization": False,
        "simdlen": 256,
    }
    together = (
        ("cudnn_benchmark", "dynamic_batch", "simdlen"),
        ("mode", "gemm_backends"),
        ("freezing", "weight_prepack", "layout_optimization"),
    )
    never_imported = ("timm",)


@pytest.mark.usefixtures("compilers")
class TestTorchCompileOnGpu(OnGpu, TestTorchCompile):
    """Also in the precisions that PyTorch has on a GPU only."""
