"""Fold shape arithmetic of an ONNX graph into constants. Imports onnx, so import it in the adapter's methods only.

An export with a free batch axis computes with it: ``Shape``, ``Range``, ``Reshape`` to the result. TVM imports these as
operations at run time, after which no shape is known: such kernels cannot be tuned, nor layouts converted. With a fixed
batch size all of it is constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

_SMALL = 4096
"""Elements up to which a tensor may be part of shape arithmetic; weights are larger."""
_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)

Array = NDArray[Any]


def fold_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Fix the shapes of the inputs, and fold all that depends on shapes alone."""
    if not any(node.op_type == "Shape" for node in model.graph.node):
        return model
    for value in model.graph.input:
        if value.name in shapes:
            elements = value.type.tensor_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, elements.elem_type, list(shapes[value.name])))
    known = _known_shapes(model)
    constants = _small_constants(model)
    nodes: list[onnx.NodeProto] = []
    folded: dict[str, Array] = {}
    for node in model.graph.node:
        values = _fold(node, constants, known, model.opset_import)
        if values is None:
            nodes.append(node)
            continue
        constants.update(zip(node.output, values, strict=True))
        if node.op_type != "Constant":
            folded.update(zip(node.output, values, strict=True))
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    # What was inferred for the free batch axis is not true any more.
    del model.graph.value_info[:]
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in folded.items() if name in used
    )
    return model


def _known_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Tensors whose shapes follow from those of the inputs."""
    small = [tensor for tensor in model.graph.initializer if prod(tensor.dims) <= _SMALL]
    large = [tensor for tensor in model.graph.initializer if prod(tensor.dims) > _SMALL]
    # Weights count by their shape alone; without them the graph is small.
    stand_ins = [helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in large]
    outputs = [helper.make_value_info(value.name, onnx.TypeProto()) for value in model.graph.output]
    inputs = [*model.graph.input, *stand_ins]
    graph = helper.make_graph(model.graph.node, "shapes", inputs, outputs, small)
    light = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    light.functions.extend(model.functions)
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    known = {}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                known[value.name] = tuple(dim.dim_value for dim in dims)
    return known


def _small_constants(model: onnx.ModelProto) -> dict[str, Array]:
    small = (tensor for tensor in model.graph.initializer if prod(tensor.dims) <= _SMALL)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in small}


def _fold(
    node: onnx.NodeProto, constants: Mapping[str, Array], known: Mapping[str, tuple[int, ...]], opsets: Sequence[Any]
) -> list[Array] | None:
    """Outputs of a node, if they are constant and small."""
    subgraphs = any(
        attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute
    )
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM or subgraphs:
        return None
    if node.op_type == "Shape" and node.input[0] in known:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        return [np.array(known[node.input[0]][attributes.get("start", 0) : attributes.get("end")], dtype=np.int64)]
    names = [name for name in node.input if name]
    if not all(name in constants for name in names):
        return None
    try:
        values = _evaluate(node, {name: constants[name] for name in names}, opsets)
    except Exception:  # noqa: BLE001 - what the reference does not compute is left to TVM
        return None
    return values if all(isinstance(value, np.ndarray) and value.size <= _SMALL for value in values) else None


def _evaluate(node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[Any]) -> list[Array]:
    """Evaluate a node on constants, by the reference implementation of its operator."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    results = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets)).run(None, dict(values))
    return [np.asarray(result) for result in results]
