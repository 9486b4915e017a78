"""ONNX operators in NumPy for shape arithmetic: on small integer arrays on the host, symbolic sizes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from mlflow_ngraph_onnx.values import Host, Node, host_operator


@host_operator("Identity")
def _identity(node: Node, value: Host) -> Host:
    return value


@host_operator("Add")
def _add(node: Node, a: Host, b: Host) -> Host:
    return np.asarray(a + b)


@host_operator("Sub")
def _sub(node: Node, a: Host, b: Host) -> Host:
    return np.asarray(a - b)


@host_operator("Mul")
def _mul(node: Node, a: Host, b: Host) -> Host:
    return np.asarray(a * b)


@host_operator("Div")
def _div(node: Node, a: Host, b: Host) -> Host:
    floor = np.asarray(a // b)
    if object in (a.dtype, b.dtype):
        return floor  # sizes are not negative
    inexact = (a % b != 0) & ((a < 0) != (b < 0))
    return np.asarray(floor + inexact.astype(floor.dtype))  # towards zero


@host_operator("Equal")
def _equal(node: Node, a: Host, b: Host) -> Host:
    return np.asarray(np.equal(a, b, dtype=object).astype(bool))


@host_operator("Where")
def _where(node: Node, condition: Host, a: Host, b: Host) -> Host:
    return np.where(condition, a, b)


@host_operator("Gather")
def _gather(node: Node, data: Host, indices: Host) -> Host:
    return np.asarray(np.take(data, indices.astype(np.int64), axis=node.get("axis", 0)))


@host_operator("Concat")
def _concat(node: Node, *values: Host) -> Host:
    return np.concatenate(values, axis=node.get("axis", 1))


@host_operator("Unsqueeze")
def _unsqueeze(node: Node, value: Host, axes: Host | None = None) -> Host:
    return np.expand_dims(value, tuple(node.get("axes") or np.asarray(axes).tolist()))


@host_operator("Squeeze")
def _squeeze(node: Node, value: Host, axes: Host | None = None) -> Host:
    chosen = node.get("axes") if axes is None else axes.tolist()
    return np.squeeze(value, None if chosen is None else tuple(chosen))


@host_operator("Reshape")
def _reshape(node: Node, value: Host, shape: Host) -> Host:
    sizes: list[Any] = shape.tolist()
    if not node.get("allowzero", 0):
        sizes = [value.shape[axis] if type(size) is int and size == 0 else size for axis, size in enumerate(sizes)]
    return np.reshape(value, sizes)


@host_operator("Slice")
def _slice(
    node: Node,
    data: Host,
    starts: Host | None = None,
    ends: Host | None = None,
    axes: Host | None = None,
    steps: Host | None = None,
) -> Host:
    first = node.get("starts") if starts is None else starts.tolist()
    last = node.get("ends") if ends is None else ends.tolist()
    chosen = node.get("axes", list(range(len(first)))) if axes is None else axes.tolist()
    strides = [1] * len(first) if steps is None else steps.tolist()
    index: list[Any] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(first, last, chosen, strides, strict=True):
        index[axis] = slice(start, end, step)
    return np.asarray(data[tuple(index)])


@host_operator("ReduceProd")
def _reduce_prod(node: Node, value: Host, axes: Host | None = None) -> Host:
    chosen = tuple(node.get("axes", ()) if axes is None else axes.tolist())
    if not chosen and node.get("noop_with_empty_axes", 0):
        return value
    return np.asarray(np.prod(value, axis=chosen or None, dtype=value.dtype, keepdims=bool(node.get("keepdims", 1))))


@host_operator("ConstantOfShape")
def _constant_of_shape(node: Node, shape: Host) -> Host | None:
    value = node.get("value")
    fill = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if fill.dtype.kind not in "ib" or shape.dtype == object or shape.size > 1:
        return None
    return np.full(shape.tolist(), fill[0])


@host_operator("Cast")
def _cast(node: Node, value: Host) -> Host | None:
    kind = onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"])
    if kind.kind not in "ib":
        return None
    return value if value.dtype == object else value.astype(kind)
