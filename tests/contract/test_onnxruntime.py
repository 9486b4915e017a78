from typing import ClassVar

from mlflow_ngraph.testing.contract import CompilerContract


class TestOnnxRuntime(CompilerContract):
    compiler = "onnxruntime"
    other_flags: ClassVar = {
        "graph_optimization_level": "basic",
        "inter_op_threads": 2,
        "spinning": False,
        "memory_pattern": False,
        "save_format": "ort",
        "dynamic_batch": False,
    }
    never_imported = ("torch", "timm", "onnx")
