from typing import ClassVar

from mlflow_ngraph.testing.contract import CompilerContract


class TestTVM(CompilerContract):
    compiler = "tvm"
    other_flags: ClassVar = {"opt_level": 2, "mcpu": "x86-64-v2"}
    never_imported = ("torch", "timm", "onnx")
