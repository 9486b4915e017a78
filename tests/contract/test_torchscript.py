from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.apart import OnTorch
from tests.support.on_gpu import OnGpu

pytestmark = pytest.mark.usefixtures("compilers")


class TestTorchScript(OnTorch, CompilerContract):
    compiler = "torchscript"
    never_imported = ("timm",)
    other_flags: ClassVar = {
        "cudnn_benchmark": True,
        "method": "script",
        "freeze": False,
        "optimize_for_inference": True,
    }


class TestTorchScriptOnGpu(OnGpu, TestTorchScript):
    """Also in the precisions that PyTorch has on a GPU only."""
