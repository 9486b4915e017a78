"""Convert ONNX models to 16 bits: a strongly typed network computes only in its model's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from mlflow_ngraph.compilers.base import Precision
from mlflow_ngraph.errors import UnsupportedError

_TYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes of operators that name the element type of an output."""


def in_precision(model: ModelProto, precision: Precision) -> ModelProto:
    """Convert weights and computation to a precision; inputs and outputs keep their types.

    ``model`` is changed in place for fp16; for fp32 and tf32, which have the same types, it is returned as it is.

    Raises `UnsupportedError` if the converter is not installed.
    """
    if precision == "fp16":
        return _as_float16(model)
    if precision == "bf16":
        exact = dict(_float_tensors(model.graph))
        # The converter changes a copy; what it takes from its argument are the same tensors.
        converted = _as_float16(_copy(model))
        _to_bfloat16(converted.graph, exact)
        return converted
    return model


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _as_float16(model: ModelProto) -> ModelProto:
    """Convert with ONNX Runtime's converter: 16 bits everywhere, and casts for operators without a 16-bit form."""
    try:
        from onnxruntime.transformers.float16 import convert_float_to_float16
    except ImportError as error:
        raise UnsupportedError(
            f"16 bits need onnxruntime, which converts the model ({error}): pip install onnxruntime"
        ) from error
    converted: ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return _sorted(converted)


def _sorted(model: ModelProto) -> ModelProto:
    """Sort nodes topologically: the converter appends its casts after their readers."""
    inner = onnx_ir.serde.deserialize_model(model)
    inner.graph.sort()
    ordered: ModelProto = onnx_ir.serde.serialize_model(inner)
    return ordered


def _to_bfloat16(graph: GraphProto, exact: Mapping[str, TensorProto]) -> None:
    """Turn every float16 of a graph into bfloat16, and round weights from their exact values once."""
    for tensor in graph.initializer:
        _round(tensor, exact.get(tensor.name, tensor))
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
            elif attribute.type == AttributeProto.TENSOR:
                _round(attribute.t, exact.get(_key(node, attribute), attribute.t))
    _each_subgraph(graph, lambda inner: _to_bfloat16(inner, exact))


def _round(tensor: TensorProto, exact: TensorProto) -> None:
    """Store other values in a float16 tensor as bfloat16."""
    if tensor.data_type != TensorProto.FLOAT16:
        return
    values: Any = numpy_helper.to_array(exact).astype(np.float32).astype(ml_dtypes.bfloat16)
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.raw_data = name, TensorProto.BFLOAT16, values.tobytes()
    tensor.dims.extend(dims)


def _float_tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Float32 weights and constants by the names that they keep after conversion."""
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                yield _key(node, attribute), attribute.t
            elif attribute.type == AttributeProto.GRAPH:
                yield from _float_tensors(attribute.g)


def _key(node: NodeProto, attribute: AttributeProto) -> str:
    """Name of the unnamed tensor in an attribute; no initializer can have it."""
    return f"{node.output[0]}\0{attribute.name}"


def _each_subgraph(graph: GraphProto, change: Callable[[GraphProto], None]) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                change(attribute.g)
