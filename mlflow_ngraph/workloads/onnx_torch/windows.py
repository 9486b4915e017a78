"""Padding of sliding windows in ONNX, converted to torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from mlflow_ngraph.workloads.onnx_torch.values import Node


def paddings(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each axis, given or automatic."""
    axes = len(kernel)
    mode = node.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * axes, [0] * axes
    if mode == "NOTSET":
        pads = node.get("pads", [0] * 2 * axes)
        return pads[:axes], pads[axes:]
    totals = [
        max((math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small = [total // 2 for total in totals]
    large = [total - part for total, part in zip(totals, small, strict=True)]
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def extended(value: Tensor, before: Sequence[int], after: Sequence[int], fill: float) -> Tensor:
    """Pad a value around its spatial axes, or crop it where the number is negative."""
    pairs = [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]
    return functional.pad(value, pairs, value=fill)
