"""ONNX operators that move elements without computing, and operators that create tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph_onnx.values import Host, Node, host, host_operator, operator

_END = 2**31
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("Shape", attributes="start end")
def _shape(node: Node, value: Tensor) -> Host:
    return host(list(value.shape)[node.get("start", 0) : node.get("end")])


@operator("Size")
def _size(node: Node, value: Tensor) -> Host:
    return host([math.prod(value.shape)]).reshape(())


@operator("Reshape", host=(1,), attributes="allowzero")
def _reshape(node: Node, value: Tensor, shape: list[int]) -> Tensor:
    if not node.get("allowzero", 0):
        shape = [value.shape[axis] if _is(size, 0) else size for axis, size in enumerate(shape)]
    return value.reshape(shape)


def _is(size: Any, constant: int) -> bool:
    """Compare without evaluating a symbolic size, which would fix it."""
    return type(size) is int and size == constant


@operator("Flatten", attributes="axis")
def _flatten(node: Node, value: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    axis = axis + value.ndim if axis < 0 else axis
    return value.reshape(math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))


@operator("Transpose", attributes="perm")
def _transpose(node: Node, value: Tensor) -> Tensor:
    return value.permute(node.get("perm", list(range(value.ndim))[::-1]))


@operator("Concat", attributes="axis")
def _concat(node: Node, *values: Tensor) -> Tensor:
    return torch.cat(values, dim=node.get("axis", 1))


@operator("Split", host=(1,), attributes="axis num_outputs split")
def _split(node: Node, value: Tensor, given: list[int] | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", 0)
    sizes: list[int] | int | None = given or node.get("split")
    if sizes is None:
        sizes = -(-value.shape[axis] // len(node.outputs))
    return tuple(torch.split(value, sizes, dim=axis))


@operator("Slice", host=(1, 2, 3, 4), attributes="axes ends starts")
def _slice(
    node: Node,
    value: Tensor,
    starts: list[int] | None = None,
    ends: list[int] | None = None,
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> Tensor:
    starts = node.attributes["starts"] if starts is None else starts
    ends = node.attributes["ends"] if ends is None else ends
    axes = axes or node.get("axes") or list(range(len(starts)))
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        value = _slice_axis(value, axis, start, end, step)
    return value


def _slice_axis(value: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    if step < 0:  # torch slices forwards only
        indices = range(value.shape[axis])[start : None if end < -_END else end : step]
        return value.index_select(axis, torch.tensor(list(indices), dtype=torch.int64, device=value.device))
    index: list[slice] = [slice(None)] * value.ndim
    index[axis] = slice(start, None if type(end) is int and end >= _END - 1 else end, step)
    return value[tuple(index)]


@operator("Gather", attributes="axis")
def _gather(node: Node, data: Tensor, indices: Tensor) -> Tensor:
    axis = node.get("axis", 0) % data.ndim
    flat = indices.reshape(-1)
    flat = torch.where(flat < 0, flat + data.shape[axis], flat)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return data.index_select(axis, flat).reshape(shape)


@operator("GatherElements", attributes="axis")
def _gather_elements(node: Node, data: Tensor, indices: Tensor) -> Tensor:
    axis, places = node.get("axis", 0), indices.long()
    return torch.gather(data, axis, torch.where(places < 0, places + data.shape[axis], places))


@operator("GatherND", attributes="batch_dims")
def _gather_nd(node: Node, data: Tensor, indices: Tensor) -> Tensor:
    batch = node.get("batch_dims", 0)
    rows = [torch.arange(size, device=data.device) for size in indices.shape[:-1]]
    grids = torch.meshgrid(*rows, indexing="ij")[:batch] if batch else ()
    place = (*grids, *indices.unbind(-1))
    return data[place]


@operator("ScatterND", attributes="reduction")
def _scatter_nd(node: Node, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    place = tuple(indices.unbind(-1))
    reduction = node.get("reduction", "none")
    if reduction in ("none", "add"):
        return data.index_put(place, updates, accumulate=reduction == "add")
    depth = indices.shape[-1]
    rows = torch.arange(math.prod(data.shape[:depth]), device=data.device).reshape(data.shape[:depth])[place]
    flat, changes = data.reshape(math.prod(data.shape[:depth]), -1), updates.reshape(rows.numel(), -1)
    spots = rows.reshape(-1, 1).expand_as(changes)
    return flat.scatter_reduce(0, spots, changes, _REDUCTIONS[reduction]).reshape(data.shape)


@operator("Scatter", "ScatterElements", attributes="axis reduction")
def _scatter_elements(node: Node, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, places = node.get("axis", 0), indices.long()
    places = torch.where(places < 0, places + data.shape[axis], places)
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return data.scatter(axis, places, updates)
    return data.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


@operator("ReverseSequence", attributes="batch_axis time_axis")
def _reverse_sequence(node: Node, value: Tensor, lengths: Tensor) -> Tensor:
    time = node.get("time_axis", 0)
    if {time, node.get("batch_axis", 1)} != {0, 1}:
        raise NotImplementedError("ReverseSequence over other axes than the first two")
    steps = torch.arange(value.shape[time], device=value.device).unsqueeze(1 - time)
    ends = lengths.unsqueeze(time)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    return torch.gather(value, time, places.reshape(*places.shape, *[1] * (value.ndim - 2)).expand_as(value))


@operator("Squeeze", host=(1,), attributes="axes")
def _squeeze(node: Node, value: Tensor, axes: list[int] | None = None) -> Tensor:
    axes = node.get("axes") if axes is None else axes
    return torch.squeeze(value) if axes is None else torch.squeeze(value, tuple(axes))


@operator("Unsqueeze", host=(1,), attributes="axes")
def _unsqueeze(node: Node, value: Tensor, axes: list[int] | None = None) -> Tensor:
    chosen = node.attributes["axes"] if axes is None else axes
    rank = value.ndim + len(chosen)
    for axis in sorted(axis % rank for axis in chosen):
        value = value.unsqueeze(axis)
    return value


@operator("Expand", host=(1,))
def _expand(node: Node, value: Tensor, shape: list[int]) -> Tensor:
    missing = value.ndim - len(shape)
    wanted = [1] * missing + list(shape)
    own = [1] * -missing + list(value.shape)
    return value.expand([size if _is(want, 1) else want for want, size in zip(wanted, own, strict=True)])


@operator("Tile", host=(1,))
def _tile(node: Node, value: Tensor, repeats: list[int]) -> Tensor:
    return value.repeat(repeats)


@operator("Pad", host=(1, 3), attributes="mode pads value")
def _pad(
    node: Node,
    value: Tensor,
    pads: list[int] | None = None,
    fill: Tensor | None = None,
    axes: list[int] | None = None,
) -> Tensor:
    pads = node.attributes["pads"] if pads is None else pads
    chosen = [axis % value.ndim for axis in axes] if axes else list(range(value.ndim))
    amounts = [(0, 0)] * value.ndim
    for position, axis in enumerate(chosen):
        amounts[axis] = (pads[position], pads[position + len(chosen)])
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[
        node.get("mode", "constant")
    ]
    if mode == "constant":
        constant = node.get("value", 0.0) if fill is None else fill.item()
        return torch.constant_pad_nd(value, _last_first(amounts), constant)
    while amounts and amounts[0] == (0, 0):  # these modes pad the last axes only
        amounts = amounts[1:]
    if len(amounts) <= 3 and value.ndim - len(amounts) in (1, 2) and min(map(min, amounts), default=0) >= 0:
        return functional.pad(value, _last_first(amounts), mode=mode)
    if mode == "circular" and min(map(min, amounts), default=0) < 0:
        raise NotImplementedError("Pad that wraps what it has cut")
    for axis, (before, after) in enumerate(amounts, value.ndim - len(amounts)):
        value = value.index_select(axis, _padded(value.shape[axis], before, after, mode).to(value.device))
    return value


def _padded(size: int, before: int, after: int, mode: str) -> Tensor:
    """Source index of each element of a padded axis."""
    places = torch.arange(-before, size + after)
    if mode == "replicate":
        return places.clamp(0, size - 1)
    if mode == "circular":
        return places % size
    around = places.abs() % max(1, 2 * (size - 1))
    return torch.minimum(around, 2 * (size - 1) - around)


def _last_first(amounts: list[tuple[int, int]]) -> list[int]:
    return [amount for pair in reversed(amounts) for amount in pair]


@operator("Trilu", host=(1,), attributes="upper")
def _trilu(node: Node, value: Tensor, diagonal: list[int] | None = None) -> Tensor:
    function = torch.triu if node.get("upper", 1) else torch.tril
    return function(value, diagonal=diagonal[0] if diagonal else 0)


@operator("DepthToSpace", attributes="blocksize mode")
def _depth_to_space(node: Node, value: Tensor) -> Tensor:
    size = node.attributes["blocksize"]
    if node.get("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(value, size)
    batch, channels, height, width = value.shape
    blocks = value.reshape(batch, size, size, channels // size**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(batch, channels // size**2, height * size, width * size)


@operator("SpaceToDepth", attributes="blocksize mode")
def _space_to_depth(node: Node, value: Tensor) -> Tensor:
    if node.get("mode", "DCR") != "DCR":
        raise NotImplementedError("SpaceToDepth with another mode than DCR")
    size = node.attributes["blocksize"]
    batch, channels, height, width = value.shape
    blocks = value.reshape(batch, channels, height // size, size, width // size, size)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(batch, channels * size**2, height // size, width // size)


@operator("ConstantOfShape", host=(0,), attributes="value")
def _constant_of_shape(node: Node, shape: list[int]) -> Tensor:
    value = node.get("value")
    fill = torch.zeros(1) if value is None else torch.tensor(onnx.numpy_helper.to_array(value))
    return fill.reshape(()).expand(tuple(shape)).clone()


@operator("Range")
def _range(node: Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)


@host_operator("Range")
def _host_range(node: Node, start: Host, limit: Host, delta: Host) -> Tensor:
    kind = torch.int64 if object in (start.dtype, limit.dtype, delta.dtype) else getattr(torch, start.dtype.name)
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=kind)


@operator("OneHot", host=(1,), attributes="axis")
def _one_hot(node: Node, indices: Tensor, depth: list[int], values: Tensor) -> Tensor:
    classes = torch.arange(depth[0], device=indices.device)
    places = indices.long()
    hot = torch.where(places < 0, places + depth[0], places).unsqueeze(-1) == classes
    axis = node.get("axis", -1)
    return torch.movedim(torch.where(hot, values[1], values[0]), -1, axis)


def constant(node: Node) -> Host:
    """Value of a ``Constant`` node."""
    for name, kind in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in node.attributes:
            return np.array(node.attributes[name], dtype=kind)
    value: Host = onnx.numpy_helper.to_array(node.attributes["value"])
    return value
