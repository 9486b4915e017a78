"""What the parts of the stand-in for TensorRT share: listed objects, and the types of ONNX under TensorRT's names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto

LISTINGS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "compilers" / "data" / "tensorrt_api.json").read_text()
)
DTYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT64: "INT64",
    TensorProto.INT32: "INT32",
    TensorProto.BOOL: "BOOL",
}
NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}


class Module(Protocol):
    """What listed objects ask of the module that they belong to."""

    def member(self, kind: str, name: str) -> Any: ...

    def check_call(self, kind: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None: ...


class Listed:
    """An object of a listed class; ``state`` is what lies behind the names."""

    def __init__(self, trt: Module, kind: str, **state: Any) -> None:
        object.__setattr__(self, "_trt", trt)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_state", state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        trt, kind, state = self._trt, self._kind, self._state
        member = trt.member(kind, name)
        if isinstance(member, str):
            found = getattr(trt, f"_get_{kind}_{name}", None)
            return found(self) if found else state[name]
        behaviour = getattr(trt, f"_{kind}_{name}")

        def method(*arguments: Any, **named: Any) -> Any:
            trt.check_call(kind, name, arguments, named)
            return behaviour(self, *arguments, **named)

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        member = self._trt.member(self._kind, name)
        if member != "read and write":
            raise AttributeError(f"{self._kind}.{name} cannot be set")
        self._state[name] = value


class Memory(bytes):
    """``IHostMemory``: something with a buffer."""


def shape_of(value: Any) -> tuple[int, ...]:
    return tuple(
        dimension.dim_value if dimension.HasField("dim_value") else -1 for dimension in value.type.tensor_type.shape.dim
    )


def fits(signature: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a call has the right number of arguments under the right names."""
    inner = re.search(r"\((.*)\) ->", signature)
    assert inner, signature
    parts, depth = [""], 0
    for character in inner[1]:
        depth += (character in "[<(") - (character in "]>)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parameters = [part.strip() for part in parts if part.strip() and not part.strip().startswith("self:")]
    names = [part.partition(":")[0] for part in parameters]
    required = sum("=" not in part for part in parameters)
    return set(named) <= set(names[len(arguments) :]) and required <= len(arguments) + len(named) <= len(parameters)
