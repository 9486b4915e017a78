from typing import ClassVar

from mlflow_ngraph.testing.contract import CompilerContract


class TestTorchScript(CompilerContract):
    compiler = "torchscript"
    other_flags: ClassVar = {"method": "script", "freeze": False, "optimize_for_inference": True}
