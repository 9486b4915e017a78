"""An ONNX graph in worse arithmetic than its own: what `arithmetic` does to PyTorch models, for files that PyTorch lacks operators for.

Both functions give another graph with the same inputs and outputs, for ONNX Runtime to run. For child processes only.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from mlflow_ngraph.workloads.arithmetic import BESIDE, TIMES

_ROUND_OFF = {TensorProto.FLOAT: 2.0**-24, TensorProto.FLOAT16: 2.0**-11, TensorProto.DOUBLE: 2.0**-53}
_EXACT = frozenset(
    (
        *(
            "Abs",
            "ArgMax",
            "ArgMin",
            "Ceil",
            "Clip",
            "Compress",
            "Concat",
            "Constant",
            "ConstantOfShape",
            "DepthToSpace",
        ),
        *("Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool"),
        *(
            "Hardmax",
            "Identity",
            "Max",
            "MaxPool",
            "Min",
            "Neg",
            "OneHot",
            "Pad",
            "Range",
            "ReduceMax",
            "ReduceMin",
            "Relu",
        ),
        *(
            "Reshape",
            "ReverseSequence",
            "Round",
            "ScatterElements",
            "ScatterND",
            "Sign",
            "Slice",
            "SpaceToDepth",
            "Split",
        ),
        *("Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
"""Operators that round nothing: they choose among numbers, or are exact."""
_LEVELLED = frozenset(
    (
        *("AveragePool", "Conv", "ConvTranspose", "CumSum", "Einsum", "Gemm", "GlobalAveragePool", "GlobalLpPool"),
        *(
            "GridSample",
            "GroupNormalization",
            "GRU",
            "InstanceNormalization",
            "LayerNormalization",
            "LpPool",
            "LRN",
            "LSTM",
        ),
        *(
            "MatMul",
            "MeanVarianceNormalization",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMean",
        ),
        *("ReduceSum", "ReduceSumSquare", "Resize", "RNN"),
        *("Celu", "Elu", "Erf", "Gelu", "Mish", "Selu", "Sigmoid", "Softplus"),
    )
)
"""Operators whose small results are what is left of larger numbers."""
_ROUNDED = frozenset(("Ceil", "DynamicQuantizeLinear", "Floor", "QuantizeLinear", "Round"))
"""Operators that give the same for all of a range."""
_COMPARED = frozenset(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"))
"""Operators that change by a jump where two numbers are equal."""


def disturbed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph in which the result of every node is off by `TIMES` roundings of its type, drawn for each number at each run."""
    changed, kinds = _copied(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        nodes.append(own)
        for place, name in enumerate(node.output):
            if node.op_type in _EXACT or kinds.get(name) not in _ROUND_OFF:
                continue
            own.output[place] = f"{name}/own"
            nodes += _moved(name, kinds[name], len(nodes), levelled=node.op_type in _LEVELLED)
    changed.graph.node.extend(nodes)
    return changed


def across_steps(model: onnx.ModelProto, side: float) -> onnx.ModelProto | None:
    """A graph in which what is rounded to steps, or compared, is larger or smaller by `BESIDE` roundings, so that what lies beside
    the end of a step falls to its other side; None where nothing is.

    Parameters
    ----------
    side : float
        1 for larger, -1 for smaller.
    """
    changed, kinds = _copied(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        own = onnx.NodeProto()
        own.CopyFrom(node)
        kind = kinds.get(node.input[0]) if node.input else None
        if kind is not None and kind in _ROUND_OFF and (node.op_type in _ROUNDED | _COMPARED or _is_truncating(node)):
            own.input[0] = f"{node.input[0]}/{len(nodes)}"
            by = side * BESIDE * _ROUND_OFF[kind]
            nodes += _larger(node.input[0], own.input[0], kind, by, zeros=node.op_type in _ROUNDED)
        nodes.append(own)
    changed.graph.node.extend(nodes)
    return changed if len(nodes) > len(model.graph.node) else None


def _copied(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The model without its nodes, and the element types of its values."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    return changed, kinds | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def _is_truncating(node: onnx.NodeProto) -> bool:
    kind = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
    return node.op_type == "Cast" and helper.tensor_dtype_to_np_dtype(kind).kind in "iu"


def _moved(name: str, kind: int, seed: int, *, levelled: bool) -> Iterator[onnx.NodeProto]:
    """From ``name/own`` to ``name``."""
    by = TIMES * _ROUND_OFF[kind]
    # A factor and no summand: infinity stays what it is.
    drawn = {"dtype": TensorProto.DOUBLE if kind == TensorProto.DOUBLE else TensorProto.FLOAT, "seed": float(seed)}
    yield helper.make_node("RandomUniformLike", [f"{name}/own"], [f"{name}/drawn"], low=1 - by, high=1 + by, **drawn)
    yield helper.make_node("Cast", [f"{name}/drawn"], [f"{name}/factor"], to=kind)
    product = f"{name}/product" if levelled else name
    yield helper.make_node("Mul", [f"{name}/own", f"{name}/factor"], [product])
    if levelled:
        yield helper.make_node("Abs", [f"{name}/own"], [f"{name}/size"])
        yield helper.make_node("ReduceMean", [f"{name}/size"], [f"{name}/level"])
        yield helper.make_node("Mul", [f"{name}/level", f"{name}/factor"], [f"{name}/beside"])
        yield helper.make_node("Sub", [f"{name}/beside", f"{name}/level"], [f"{name}/by"])
        yield helper.make_node("Add", [product, f"{name}/by"], [name])


def _larger(name: str, result: str, kind: int, by: float, *, zeros: bool) -> Iterator[onnx.NodeProto]:
    """A value that is off by a share of its size, and of what is usual in it."""
    share = helper.make_tensor("share", kind, [], [by])
    yield helper.make_node("Constant", [], [f"{result}/share"], value=share)
    yield helper.make_node("Abs", [name], [f"{result}/size"])
    size = f"{result}/size"
    if zeros:
        yield helper.make_node("ReduceMean", [size], [f"{result}/level"])
        yield helper.make_node("Add", [size, f"{result}/level"], [f"{result}/both"])
        size = f"{result}/both"
    yield helper.make_node("Mul", [size, f"{result}/share"], [f"{result}/by"])
    yield helper.make_node("Add", [name, f"{result}/by"], [result])
