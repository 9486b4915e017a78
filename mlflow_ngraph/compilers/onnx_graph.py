"""Inspect ONNX graphs: nodes, kept as JSON for explanations, batch symbols, and 8-bit products that saturate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers import host
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec


@dataclass(frozen=True)
class Node:
    """One node of a graph. Values have names."""

    name: str
    operation: str
    domain: str
    """Empty for the operators of the ONNX standard."""
    inputs: tuple[str, ...]
    """In the operator's order; empty where an optional one is left out."""
    outputs: tuple[str, ...]


def read(path: Path) -> Any:
    """Read a graph without weights in other files."""
    import onnx

    return onnx.load(str(path), load_external_data=False).graph


def nodes(graph: Any) -> list[Node]:
    """Nodes in the order of the file. Nodes without a name are called by their first output."""
    return [
        Node(
            node.name or next(iter(node.output), node.op_type),
            node.op_type,
            node.domain,
            tuple(node.input),
            tuple(node.output),
        )
        for node in graph.node
    ]


def multiplies_8_bit(graph: Any) -> bool:
    """True if a graph has products of 8-bit integers, or what runtimes turn into them."""
    return any(
        node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")
        or node.op_type.startswith("QLinear")
        for node in graph.node
    )


def saturation(path: Path) -> str:
    """Known cause of wrong outputs of a file on this machine, where products of 8-bit integers saturate; empty elsewhere."""
    return host.SATURATED if host.saturates_8_bit() and multiplies_8_bit(read(path)) else ""


def batch_symbols(graph: Any, inputs: Sequence[TensorSpec]) -> list[str]:
    """Names of the batch axis, if it is free."""
    specs = {spec.name: spec for spec in inputs}
    symbols = {
        dim.dim_param
        for value in graph.input
        if value.name in specs
        for dim, size in zip(value.type.tensor_type.shape.dim, specs[value.name].shape, strict=True)
        if size == BATCH and dim.dim_param
    }
    return sorted(symbols)


def write_nodes(path: Path, found: Sequence[Node]) -> None:
    """Write the nodes of a graph whose file is not kept."""
    path.write_text(json.dumps([asdict(node) for node in found], separators=(",", ":")), encoding="utf-8")


def read_nodes(path: Path) -> list[Node]:
    """Read the file of `write_nodes`. Raises `NGraphError` if it is missing or damaged."""
    try:
        content: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return [
            Node(**{**item, "inputs": tuple(item["inputs"]), "outputs": tuple(item["outputs"])}) for item in content
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NGraphError(f"{path} does not say which nodes the model had: {error}: compile again") from None
