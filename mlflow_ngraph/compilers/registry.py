"""Registry of compilers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mlflow_ngraph.compilers.base import Compiler
from mlflow_ngraph.entry_points import Entry, Registry
from mlflow_ngraph.errors import FlagError
from mlflow_ngraph.validation import explain

_HERE = "mlflow_ngraph.compilers"

COMPILERS: Registry[Compiler[Any]] = Registry(
    "compiler",
    "mlflow_ngraph.compilers",
    {
        "identity": Entry(f"{_HERE}.identity:Identity", "pip install 'mlflow-ngraph[torch]'"),
        "torchscript": Entry(f"{_HERE}.torchscript:TorchScript", "pip install 'mlflow-ngraph[torch]'"),
        "torch-compile": Entry(f"{_HERE}.torch_compile:TorchCompile", "pip install 'mlflow-ngraph[torch]'"),
        "onnxruntime": Entry(f"{_HERE}.onnxruntime:OnnxRuntime", "pip install onnxruntime"),
        "openvino": Entry(f"{_HERE}.openvino:OpenVINO", "pip install openvino"),
        "tensorrt": Entry(f"{_HERE}.tensorrt:TensorRT", "pip install 'mlflow-ngraph[gpu]'"),
        "tensorrt-rtx": Entry(
            f"{_HERE}.tensorrt_rtx:TensorRTRTX",
            "pip install --no-deps tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings",
        ),
        # In a plugin of this project: profiles and the paper name it, and a search through all packages takes time.
        "tvm": Entry("mlflow_ngraph_tvm.adapter:TVM", "pip install ./plugins/tvm (in a checkout)"),
    },
)


def create(name: str, flags: Mapping[str, Any] | None = None) -> Compiler[Any]:
    """Create a compiler with ``flags``; missing flags have their defaults.

    Raises `UnknownNameError` for an unknown compiler, and `FlagError` for an unknown flag or a wrong value.
    """
    kind = COMPILERS.get(name)
    try:
        return kind(kind.flags_type.model_validate(dict(flags or {})))
    except ValidationError as error:
        raise FlagError(f"compiler {name!r}: {explain(error, kind.flags_type)}") from None
