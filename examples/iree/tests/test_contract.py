"""IREE passes the suite that every adapter passes."""

from typing import ClassVar

import pytest
from mlflow_ngraph_testing.contract import CompilerContract

pytest.importorskip("mlflow_ngraph_iree", reason="the example is not installed: pip install ./examples/iree")


class TestIREE(CompilerContract):
    compiler = "iree"
    other_flags: ClassVar = {"opt_level": "O3", "target_cpu": "x86-64-v3", "dynamic_batch": True}
    never_imported = ("torch", "timm", "onnx", "iree.compiler")
