"""Rewrite an ONNX graph so that it computes less exactly: results a few roundings off, or across rounding steps.

Both functions return another graph with the same inputs and outputs, for ONNX Runtime. For child processes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from mlflow_ngraph.workloads.arithmetic import BESIDE, TIMES

_ROUND_OFF = {TensorProto.FLOAT: 2.0**-24, TensorProto.FLOAT16: 2.0**-11, TensorProto.DOUBLE: 2.0**-53}
_EXACT = frozenset(
    (
        *("Abs", "ArgMax", "ArgMin", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape"),
        *("DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements"),
        *("GatherND", "GlobalMaxPool", "Hardmax", "Identity", "Max", "MaxPool", "Min", "Neg", "OneHot", "Pad"),
        *("Range", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "ScatterElements"),
        *("ScatterND", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose"),
        *("Trilu", "Unsqueeze", "Where"),
    )
)
"""Operators that round nothing: they choose among numbers, or are exact."""
_LEVELLED = frozenset(
    (
        *("AveragePool", "Conv", "ConvTranspose", "CumSum", "Einsum", "Gemm", "GlobalAveragePool"),
        *("GlobalLpPool", "GridSample", "GroupNormalization", "GRU", "InstanceNormalization"),
        *("LayerNormalization", "LpPool", "LRN", "LSTM", "MatMul", "MeanVarianceNormalization", "ReduceL1"),
        *("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare"),
        *("Resize", "RNN"),
    )
)
"""Operators whose small results are what is left of larger numbers."""
_AROUND_ONE = frozenset(("Celu", "Elu", "Erf", "Gelu", "Mish", "Selu", "Sigmoid", "Softplus"))
"""Functions that compute with numbers around one on the way, however small the result is."""
_INNER = 2.0
_STRETCH = 9973.0
"""Constants of a sine-based hash: pseudo-random and reproducible."""
_LARGEST = 1e30
_FINITE = {TensorProto.FLOAT: 3e38, TensorProto.FLOAT16: 6e4, TensorProto.DOUBLE: 1e308}
"""Sizes of numbers that are not infinite, by type."""
_ORDERED = {"ArgMax": 0, "ArgMin": 0, "NonMaxSuppression": 1, "TopK": 0}
"""Operators that say where a number is, and the place of the numbers among their inputs."""
_WITH_RANGE = 11
"""The first version of the standard with an operator that counts."""
_ROUNDED = frozenset(("Ceil", "DynamicQuantizeLinear", "Floor", "QuantizeLinear", "Round"))
"""Operators that give the same for all of a range."""
_COMPARED = frozenset(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"))
"""Operators that change by a jump where two numbers are equal."""


def disturbed(model: onnx.ModelProto, seed: float) -> onnx.ModelProto:
    """Graph in which the result of every node is off by up to `TIMES` roundings of its type; varies by seed."""
    changed, kinds = _copied(model)
    counts = any(opset.domain in ("", "ai.onnx") and opset.version >= _WITH_RANGE for opset in model.opset_import)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        given = node.input[_ORDERED[node.op_type]] if counts and node.op_type in _ORDERED else ""
        if kinds.get(given) in _ROUND_OFF:
            # Which of several equal numbers comes first is left to each compiler.
            own.input[_ORDERED[node.op_type]] = f"{given}/{len(nodes)}"
            nodes += _apart(given, own.input[_ORDERED[node.op_type]], kinds[given], seed)
        nodes.append(own)
        for place, name in enumerate(node.output):
            if node.op_type not in _EXACT and kinds.get(name) in _ROUND_OFF and not _is_of_integers(node, kinds):
                own.output[place] = f"{name}/own"
                nodes += _moved(name, kinds[name], seed + len(nodes), node)
    changed.graph.node.extend(nodes)
    return changed


def across_steps(model: onnx.ModelProto, side: float) -> onnx.ModelProto | None:
    """Graph in which rounded or compared values are moved by `BESIDE` roundings across the end of their step.

    ``side`` is 1 for larger values, -1 for smaller. None where nothing is rounded or compared.
    """
    changed, kinds = _copied(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        kind = kinds.get(node.input[0]) if node.input else None
        steps = node.op_type in _ROUNDED | _COMPARED or _is_truncating(node)
        if kind is not None and kind in _ROUND_OFF and steps:
            own.input[0] = f"{node.input[0]}/{len(nodes)}"
            by = side * BESIDE * _ROUND_OFF[kind]
            nodes += _larger(node.input[0], own.input[0], kind, by, zeros=node.op_type in _ROUNDED)
        nodes.append(own)
    changed.graph.node.extend(nodes)
    return changed if len(nodes) > len(model.graph.node) else None


def _copied(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Model without its nodes, and the element types of its values."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    return changed, kinds | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def _is_of_integers(node: onnx.NodeProto, kinds: Mapping[str, int]) -> bool:
    """True for a cast of integers or truth values, which rounds nothing."""
    return node.op_type == "Cast" and (kinds.get(node.input[0]) or TensorProto.FLOAT) not in _ROUND_OFF


def _is_truncating(node: onnx.NodeProto) -> bool:
    kind = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    return node.op_type == "Cast" and helper.tensor_dtype_to_np_dtype(kind).kind in "iu"


def _moved(name: str, kind: int, seed: float, node: onnx.NodeProto) -> Sequence[onnx.NodeProto]:
    """Copy ``name/own``, an output of a node, to ``name``."""
    new = _Nodes(name, TensorProto.DOUBLE if kind == TensorProto.DOUBLE else TensorProto.FLOAT)
    wide = new.add("Cast", f"{name}/own", to=new.kind)
    finite = new.add("Min", new.add("Max", wide, new.number(-_LARGEST)), new.number(_LARGEST))
    angle = new.add("Add", new.add("Mul", finite, new.number(_STRETCH)), new.number(seed))
    share = new.add("Mul", new.add("Sin", angle), new.number(TIMES * _ROUND_OFF[kind]))
    # By a factor, so that infinity stays what it is.
    moved = new.add("Mul", wide, new.add("Add", share, new.number(1.0)))
    if node.op_type in _AROUND_ONE:
        moved = new.add("Add", moved, new.add("Mul", share, new.number(_INNER)))
        if node.op_type == "Softplus":
            # As in PyTorch's form of it, see `operations.INNER`.
            size = new.add("Min", new.add("Abs", new.add("Cast", node.input[0], to=new.kind)), new.number(100.0))
            moved = new.add("Add", moved, new.add("Mul", share, size))
    elif node.op_type in _LEVELLED:
        moved = new.add("Add", moved, new.add("Mul", share, new.add("ReduceMean", new.add("Abs", finite))))
    new.nodes.append(helper.make_node("Cast", [moved], [name], to=kind))
    return new.nodes


def _apart(name: str, result: str, kind: int, seed: float) -> Sequence[onnx.NodeProto]:
    """Disturb numbers by where they are, equal ones and zeros too."""
    new = _Nodes(result, TensorProto.DOUBLE if kind == TensorProto.DOUBLE else TensorProto.FLOAT)
    wide = new.add("Cast", name, to=new.kind)
    count = new.add("Cast", new.add("Size", wide), to=new.kind)
    numbers = new.add("Range", new.number(0.0), count, new.number(1.0))
    places = new.add("Reshape", numbers, new.add("Shape", wide))
    angle = new.add("Add", new.add("Mul", places, new.number(_STRETCH)), new.number(seed))
    share = new.add("Mul", new.add("Sin", angle), new.number(TIMES * _ROUND_OFF[kind]))
    size = _finite(new, wide)
    usual = new.add("Mul", new.add("ReduceMean", size), new.number(1e-2))
    size = new.add("Add", new.add("Add", size, usual), new.number(1e-20))
    new.nodes.append(helper.make_node("Cast", [new.add("Add", wide, new.add("Mul", size, share))], [result], to=kind))
    return new.nodes


def _finite(new: _Nodes, name: str) -> str:
    """Sizes of numbers; an infinity has none."""
    size = new.add("Abs", name)
    return new.add("Where", new.add("Less", size, new.number(_FINITE[new.kind])), size, new.number(0.0))


def _larger(name: str, result: str, kind: int, by: float, *, zeros: bool) -> Sequence[onnx.NodeProto]:
    """Add to a value a share of its size, and of its usual size; an infinity stays as it is."""
    new = _Nodes(result, kind)
    size = _finite(new, name)
    if zeros:
        size = new.add("Add", size, new.add("ReduceMean", size))
    new.nodes.append(helper.make_node("Add", [name, new.add("Mul", size, new.number(by))], [result]))
    return new.nodes


class _Nodes:
    """Builder of consecutive nodes."""

    def __init__(self, prefix: str, kind: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.kind = kind
        self._prefix = prefix

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = f"{self._prefix}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def number(self, value: float) -> str:
        return self.add("Constant", value=helper.make_tensor("number", self.kind, [], [value]))
