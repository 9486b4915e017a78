from typing import ClassVar

import pytest

from mlflow_ngraph.testing.contract import CompilerContract


@pytest.mark.slow
class TestTorchCompile(CompilerContract):
    compiler = "torch-compile"
    other_flags: ClassVar = {"dynamic_batch": False, "max_autotune": True, "freezing": True}
    never_imported = ("timm",)
