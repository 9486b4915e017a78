"""Convert an ONNX file to a PyTorch module that runs its nodes with torch functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads import onnx_file
from mlflow_ngraph.workloads.calling import Graph
from mlflow_ngraph_onnx import elementwise, host, layers, pooling, quantising, recurrent, shaping
from mlflow_ngraph_onnx.values import HOST_OPERATORS, OPERATORS, Host, Node, Value, tensor

_OPERATOR_MODULES = (elementwise, host, layers, pooling, quantising, recurrent, shaping)
"""Imported because they fill the tables of operators."""
_STANDARD_DOMAINS = ("", "ai.onnx")
_HOST_SIZE = 64
"""Integer vectors up to this length may describe shapes, and stay on the host."""
_NOWHERE = Path("model.onnx")
"""Stands for the place of a model that has nothing in other files."""
_CONSTANTS = frozenset({"value", "value_float", "value_floats", "value_int", "value_ints"})
"""The attributes that give a ``Constant`` its value."""
_WITHOUT_EFFECT = frozenset({"consumed_inputs"})
"""Attributes of any operator that say nothing about what it computes."""
_STATISTICS = slice(3, 5)
"""Mean and variance among the inputs of a batch normalisation: what is no parameter."""


class OnnxModule(Graph):
    """Runs the nodes of a graph one after the other. Takes the inputs in the order of the graph.

    Floating-point initializers are parameters, except the running statistics of batch normalisation and scalars, which
    are buffers. External data lie in the directory of ``path``.
    """

    def __init__(self, model: onnx.ModelProto, path: Path = _NOWHERE) -> None:
        super().__init__()
        graph = model.graph
        self._nodes = [_node(proto, _opset(model, proto)) for proto in graph.node]
        _require_operators(self._nodes)
        if graph.sparse_initializer:
            raise UnsupportedError("PyTorch baseline has no sparse initializers")
        self._constants: dict[str, Host] = {}
        self._stored: dict[str, str] = {}
        statistics = {
            name for node in self._nodes if node.operator == "BatchNormalization" for name in node.inputs[_STATISTICS]
        }
        for initializer in graph.initializer:
            # One at a time: a model that has its weights in other files may be large.
            content = onnx.numpy_helper.to_array(onnx_file.load_tensor(initializer, path))
            self._store(initializer.name, content, initializer.name in statistics)
        for node in self._nodes:
            if node.operator == "Constant":
                self._store(node.outputs[0], shaping.constant(node), True)
        self._nodes = [node for node in self._nodes if node.operator != "Constant"]
        names = {initializer.name for initializer in graph.initializer}
        self._inputs = [value.name for value in graph.input if value.name not in names]
        self._outputs = [value.name for value in graph.output]
        self._dead = _last_uses(self._nodes, {*self._outputs, *self._inputs, *self._stored, *self._constants})

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        device = inputs[0].device if inputs else torch.device("cpu")
        values: dict[str, Value] = {name: getattr(self, key) for name, key in self._stored.items()}
        values.update(self._constants)
        values.update(zip(self._inputs, inputs, strict=True))
        values[""] = None
        for node, dead in zip(self._nodes, self._dead, strict=True):
            results = _run(node, [values[name] for name in node.inputs], device)
            # An output that is left out has no name, as has an input that is.
            values.update((name, result) for name, result in zip(node.outputs, results, strict=False) if name)
            for name in dead:
                values.pop(name, None)
        outputs = tuple(_output(values[name], device) for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _store(self, name: str, array: Host, buffer: bool) -> None:
        """Store a constant as a host value, a buffer or a parameter."""
        if array.dtype.kind in "iub" and array.ndim <= 1 and array.size <= _HOST_SIZE:
            self._constants[name] = array
            return
        key = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{len(self._stored)}"
        self._stored[name] = key
        content = _content(name, array)
        if buffer or array.ndim == 0 or not content.is_floating_point():
            self.register_buffer(key, content)
        else:
            self.register_parameter(key, nn.Parameter(content))


def convert(path: Path) -> OnnxModule:
    """Convert a file with its external data to a module in evaluation mode.

    Raises `UnsupportedError` for an operator that the module cannot run, with its opset, and `WorkloadError` if
    external data are missing or too short.
    """
    model = onnx_file.inlined(onnx.load(str(path), load_external_data=False))
    for node in model.graph.node:
        for kept in onnx_file.tensors(node):
            kept.CopyFrom(onnx_file.load_tensor(kept, path))
    module = OnnxModule(model, path)
    module.requires_grad_(False)
    module.eval()
    return module


def _opset(model: onnx.ModelProto, proto: onnx.NodeProto) -> int:
    domains = ("", "ai.onnx") if proto.domain in _STANDARD_DOMAINS else (proto.domain,)
    return next((entry.version for entry in model.opset_import if entry.domain in domains), 0)


def _node(proto: onnx.NodeProto, opset: int) -> Node:
    name = proto.op_type if proto.domain in _STANDARD_DOMAINS else f"{proto.domain}.{proto.op_type}"
    attributes = {item.name: _attribute(onnx.helper.get_attribute_value(item)) for item in proto.attribute}
    return Node(name, opset, tuple(proto.input), tuple(proto.output), attributes)


def _attribute(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _content(name: str, array: Host) -> torch.Tensor:
    if array.dtype.name == "bfloat16":  # NumPy's own types do not have it
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.tensor(array)
    except TypeError:
        raise UnsupportedError(f"PyTorch baseline has no element type {array.dtype} (constant {name})") from None


def _require_operators(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.operator == "Constant":
            known = _CONSTANTS
        elif node.operator in OPERATORS:
            known = OPERATORS[node.operator].attributes | _WITHOUT_EFFECT
        else:
            raise UnsupportedError(f"PyTorch baseline has no ONNX operator {node.operator} (opset {node.opset})")
        for name in node.attributes:
            if name not in known:
                raise UnsupportedError(f"PyTorch baseline cannot run {node.operator} with {name} (opset {node.opset})")


def _last_uses(nodes: Sequence[Node], keep: set[str]) -> list[list[str]]:
    """Values by the last node that reads them, so that memory does not grow with depth."""
    result: list[list[str]] = [[] for _ in nodes]
    seen = {*keep, ""}
    for position in reversed(range(len(nodes))):
        names = {*nodes[position].inputs, *nodes[position].outputs} - seen
        result[position] = sorted(names)
        seen |= names
    return result


def _run(node: Node, values: list[Value], device: torch.device) -> tuple[Value, ...]:
    """Run one node, on the host where all its inputs are host values."""
    result: Any = None
    given = [value for value in values if value is not None]
    on_host = node.operator in HOST_OPERATORS and "broadcast" not in node.attributes
    if on_host and all(isinstance(value, np.ndarray) for value in given):
        result = HOST_OPERATORS[node.operator](node, *values)
    if result is None:
        try:
            result = OPERATORS[node.operator].run(node, values, device)
        except NotImplementedError as error:
            raise UnsupportedError(f"PyTorch baseline cannot run {error} (opset {node.opset})") from None
    results = tuple(result) if isinstance(result, tuple | list) else (result,)
    if any(node.outputs[len(results) :]):
        raise UnsupportedError(
            f"PyTorch baseline cannot run {node.operator} with {len(node.outputs)} outputs (opset {node.opset})"
        )
    if any(isinstance(value, torch.Tensor) for value in values):
        return results
    return tuple(item.to(device) if isinstance(item, torch.Tensor) else item for item in results)


def _output(value: Value, device: torch.device) -> torch.Tensor:
    assert value is not None
    return tensor(value, device)
