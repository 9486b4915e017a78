from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from tests.support.apart import OnTorch
from tests.support.on_gpu import OnGpu

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]


class TestIdentity(OnTorch, CompilerContract):
    compiler = "identity"
    other_flags: ClassVar = {"cudnn_benchmark": True, "memory_format": "channels_last"}
    needs_model_code = True


class TestIdentityOnGpu(OnGpu, TestIdentity):
    """Also in the precisions that PyTorch has on a GPU only."""
