"""Parse the output of TensorRT's engine inspector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_ngraph.compilers.explanation import Kernel

_ONNX_NODE = re.compile(r"^\[ONNX Layer: (.*)\]$")
_PRECISIONS = (
    (re.compile(r"\b(?:BF16|BFloat16)\b", re.IGNORECASE), "bf16"),
    (re.compile(r"\b(?:FP16|Half|Float16)\b", re.IGNORECASE), "fp16"),
    (re.compile(r"\b(?:FP32|Float|Float32)\b", re.IGNORECASE), "fp32"),
    (re.compile(r"\bInt8\b", re.IGNORECASE), "int8"),
    (re.compile(r"\bInt32\b", re.IGNORECASE), "int32"),
    (re.compile(r"\bInt64\b", re.IGNORECASE), "int64"),
    (re.compile(r"\bBool\b", re.IGNORECASE), "bool"),
)
_MOVES = "Reformat"
"""The layer type that only changes a layout or an element type."""


def kernels(information: Mapping[str, Any]) -> tuple[Kernel, ...]:
    """One kernel for each layer of ``ICudaEngine`` in the order of execution."""
    return tuple(_kernel(layer) for layer in information.get("Layers", ()))


def layout_changes(found: Sequence[Kernel]) -> int:
    """Number of kernels that only move data."""
    return sum(kernel.operation == _MOVES for kernel in found)


def _kernel(described: Mapping[str, Any] | str) -> Kernel:
    if isinstance(described, str):
        # An engine that was built without details gives names alone.
        return Kernel(described, "")
    forms = [str(tensor.get("Format/Datatype", "")) for tensor in described.get("Outputs", ())]
    form = forms[0] if forms else ""
    return Kernel(
        name=str(described.get("Name", "")),
        operation=str(described.get("LayerType", "")),
        fused=_onnx_nodes(str(described.get("Metadata", ""))),
        implementation=str(described.get("TacticName", "")),
        layout=form,
        precision=next((name for pattern, name in _PRECISIONS if pattern.search(form)), ""),
    )


def _onnx_nodes(metadata: str) -> tuple[str, ...]:
    """ONNX nodes of a layer that computes several."""
    nodes = [match[1] for part in metadata.split("\x1e") if (match := _ONNX_NODE.match(part.strip()))]
    return tuple(nodes) if len(nodes) > 1 else ()
