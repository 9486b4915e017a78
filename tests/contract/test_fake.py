from typing import ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract

pytestmark = pytest.mark.usefixtures("compilers")


@pytest.mark.usefixtures("fake_compiler")
class TestFake(CompilerContract):
    compiler = "fake"
    other_flags: ClassVar = {"behaviour": "wrong", "at": "load", "delay_ms": 2.0, "wait": "spin", "search_batches": 2}
    other_meaning = ("behaviour",)
    never_imported = ("torch", "timm", "onnx")
    other_inputs = False
