"""ONNX operators that quantise and dequantise."""

from __future__ import annotations

import onnx
import torch
from torch import Tensor

from mlflow_ngraph_onnx.values import Node, operator

_FAR = 2**24
"""Steps that no type has."""
_STEPS = (torch.uint8, torch.int8, torch.int16, torch.int32)


@operator("QuantizeLinear", attributes="axis block_size output_dtype saturate")
def _quantize(node: Node, value: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    kind = _kind(node, zero)
    # In float, as runtimes do it, also where halves are given: to divide in these would put most numbers beside another step.
    steps = _whole(value.float() / _along(node, scale, value).float())
    return _limited(steps if zero is None else steps + _along(node, zero, value).to(torch.int32), kind)


@operator("DequantizeLinear", attributes="axis block_size output_dtype")
def _dequantize(node: Node, value: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    if value.dtype not in _STEPS or node.get("output_dtype", 0):
        raise NotImplementedError(f"DequantizeLinear of {value.dtype}, or to a type that it is told")
    steps = value.to(torch.int32)
    steps = steps if zero is None else steps - _along(node, zero, value).to(torch.int32)
    return steps.to(scale.dtype) * _along(node, scale, value)


@operator("DynamicQuantizeLinear")
def _dynamic_quantize(node: Node, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = value.amin().clamp(max=0.0), value.amax().clamp(min=0.0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = _limited(_whole(-low / scale), torch.uint8)
    return _limited(_whole(value / scale) + zero.to(torch.int32), torch.uint8), scale, zero


def _kind(node: Node, zero: Tensor | None) -> torch.dtype:
    told = node.get("output_dtype", 0)
    kinds = {
        onnx.TensorProto.UINT8: torch.uint8,
        onnx.TensorProto.INT8: torch.int8,
        onnx.TensorProto.INT16: torch.int16,
    }
    kind = zero.dtype if zero is not None else kinds.get(told or onnx.TensorProto.UINT8)
    if kind not in _STEPS[:-1]:
        raise NotImplementedError(f"{node.operator} to {kind or onnx.TensorProto.DataType.Name(told)}")
    return kind


def _along(node: Node, parameter: Tensor, value: Tensor) -> Tensor:
    """Scale or zero point with its axis aligned."""
    if node.get("block_size", 0) or parameter.ndim > 1:
        raise NotImplementedError(f"{node.operator} by blocks")
    if parameter.numel() == 1:
        return parameter.reshape(())
    axis = node.get("axis", 1) % value.ndim
    return parameter.reshape(-1, *[1] * (value.ndim - axis - 1))


def _whole(steps: Tensor) -> Tensor:
    """Round, and convert to integers before any addition: a small error would cost a whole step."""
    return torch.round(steps).clamp(-_FAR, _FAR).to(torch.int32)


def _limited(steps: Tensor, kind: torch.dtype) -> Tensor:
    ends = torch.iinfo(kind)
    return steps.clamp(ends.min, ends.max).to(kind)
