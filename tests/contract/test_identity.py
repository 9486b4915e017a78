from typing import ClassVar

from mlflow_ngraph.testing.contract import CompilerContract


class TestIdentity(CompilerContract):
    compiler = "identity"
    other_flags: ClassVar = {"memory_format": "channels_last"}
