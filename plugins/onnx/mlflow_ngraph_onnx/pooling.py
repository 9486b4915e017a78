"""ONNX operators that pool over windows, and the padding of windows, which convolutions share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph_onnx.values import Node, operator

_MAX_POOLS: dict[int, Callable[..., Any]] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}
_AVERAGE_POOLS: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}
_SUMS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


class Windows:
    """Windows of a pooling node over a value."""

    def __init__(self, node: Node, value: Tensor) -> None:
        self.kernel: list[int] = node.attributes["kernel_shape"]
        axes = len(self.kernel)
        self.strides: list[int] = node.get("strides", [1] * axes)
        self.dilations: list[int] = node.get("dilations", [1] * axes)
        self.ceil = bool(node.get("ceil_mode", 0))
        self.before, self.after = paddings(node, value.shape[2:], self.kernel, self.strides, self.dilations)
        if self.ceil and node.get("auto_pad", "NOTSET") != "NOTSET":
            raise NotImplementedError(f"{node.operator} with ceil_mode and auto_pad")
        spans = [(width - 1) * dilation + 1 for width, dilation in zip(self.kernel, self.dilations, strict=True)]
        if any(pad >= span for pads in (self.before, self.after) for pad, span in zip(pads, spans, strict=True)):
            raise NotImplementedError(f"{node.operator} with windows on nothing but padding")

    @property
    def torch_pads(self) -> bool:
        """True if torch's own pooling can pad like this: alike on both sides, and by half a window at most."""
        return self.before == self.after and all(
            pad <= width // 2 for pad, width in zip(self.before, self.kernel, strict=True)
        )

    def ends(self, sizes: Sequence[int]) -> list[int]:
        """Padding after each axis so that the windows fit exactly: the standard's, and the last window whole.

        With ``ceil_mode`` a window may reach beyond the padding, but not begin behind the value and its leading
        padding.
        """
        ends = []
        for axis, size in enumerate(sizes):
            span, stride = (self.kernel[axis] - 1) * self.dilations[axis] + 1, self.strides[axis]
            room = size + self.before[axis] + self.after[axis] - span
            last = -(-room // stride) if self.ceil else room // stride
            if self.ceil and last * stride >= size + self.before[axis]:
                last -= 1
            ends.append(last * stride + span - size - self.before[axis])
        return ends


@operator("MaxPool", attributes="auto_pad ceil_mode dilations kernel_shape pads storage_order strides")
def _max_pool(node: Node, value: Tensor) -> Tensor:
    if len(node.outputs) > 1:
        raise NotImplementedError("MaxPool with indices")
    windows = Windows(node, value)
    pool = _MAX_POOLS[len(windows.kernel)]
    if windows.torch_pads:
        options = windows.strides, windows.before, windows.dilations, windows.ceil
    else:
        lowest = -math.inf if value.is_floating_point() else torch.iinfo(value.dtype).min
        value = extended(value, windows.before, windows.ends(value.shape[2:]), lowest)
        options = windows.strides, [0] * len(windows.kernel), windows.dilations, False
    result: Tensor = pool(value, windows.kernel, *options)
    return result


@operator("AveragePool", attributes="auto_pad ceil_mode count_include_pad dilations kernel_shape pads strides")
def _average_pool(node: Node, value: Tensor) -> Tensor:
    windows, count_pads = Windows(node, value), bool(node.get("count_include_pad", 0))
    if windows.torch_pads and set(windows.dilations) == {1}:
        pool = _AVERAGE_POOLS[len(windows.kernel)]
        return pool(value, windows.kernel, windows.strides, windows.before, windows.ceil, count_pads)
    sizes = value.shape[2:]
    ends = windows.ends(sizes)
    # What is padded counts or not; what only lets a last window fit never does.
    counted = torch.ones(1, 1, *sizes, dtype=value.dtype, device=value.device)
    if count_pads:
        counted = extended(counted, windows.before, windows.after, 1.0)
        counted = extended(counted, [0] * len(ends), _less(ends, windows.after), 0.0)
    else:
        counted = extended(counted, windows.before, ends, 0.0)
    total = _sums(extended(value, windows.before, ends, 0.0), windows)
    return total / _sums(counted, windows)


def _less(ends: Sequence[int], after: Sequence[int]) -> list[int]:
    return [end - pad for end, pad in zip(ends, after, strict=True)]


def _sums(value: Tensor, windows: Windows) -> Tensor:
    """Sum over every window of a value, each channel by itself."""
    ones = torch.ones(1, 1, *windows.kernel, dtype=value.dtype, device=value.device)
    images = value.reshape(value.shape[0] * value.shape[1], 1, *value.shape[2:])
    sums = _SUMS[len(windows.kernel)](images, ones, None, windows.strides, 0, windows.dilations)
    return sums.reshape(*value.shape[:2], *sums.shape[2:])


@operator("LpPool", attributes="auto_pad ceil_mode dilations kernel_shape p pads strides")
def _lp_pool(node: Node, value: Tensor) -> Tensor:
    windows, power = Windows(node, value), float(node.get("p", 2))
    powers = extended(value.abs() ** power, windows.before, windows.ends(value.shape[2:]), 0.0)
    return _sums(powers, windows) ** (1 / power)


@operator("GlobalLpPool", attributes="p")
def _global_lp_pool(node: Node, value: Tensor) -> Tensor:
    return torch.linalg.vector_norm(value, float(node.get("p", 2)), _spatial(node, value), keepdim=True)


@operator("GlobalAveragePool")
def _global_average_pool(node: Node, value: Tensor) -> Tensor:
    return value.mean(dim=_spatial(node, value), keepdim=True)


@operator("GlobalMaxPool")
def _global_max_pool(node: Node, value: Tensor) -> Tensor:
    return value.amax(dim=_spatial(node, value), keepdim=True)


def _spatial(node: Node, value: Tensor) -> list[int]:
    if value.ndim < 3:  # torch would take no axes for all of them
        raise NotImplementedError(f"{node.operator} of a matrix")
    return list(range(2, value.ndim))


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
