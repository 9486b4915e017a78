"""Operators that mix elements: products, convolutions, normalisation, reductions, resampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph.workloads.onnx_torch.values import Node, operator
from mlflow_ngraph.workloads.onnx_torch.windows import extended, paddings

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


@operator("MatMul")
def _matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("Gemm")
def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    left = a.t() if node.get("transA", 0) else a
    right = b if node.get("transB", 0) else b.t()
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if alpha == 1.0 and beta == 1.0 and (c is None or c.ndim == 1):
        return functional.linear(left, right, c)
    product = alpha * functional.linear(left, right)
    return product if c is None else product + beta * c


@operator("Det")
def _det(node: Node, value: Tensor) -> Tensor:
    return torch.linalg.det(value)


@operator("Einsum")
def _einsum(node: Node, *values: Tensor) -> Tensor:
    return torch.einsum(node.attributes["equation"], *values)


@operator("Conv")
def _conv(node: Node, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    strides, dilations = node.get("strides", [1] * axes), node.get("dilations", [1] * axes)
    before, after = paddings(node, value.shape[2:], weight.shape[2:], strides, dilations)
    if before != after:  # torch pads both sides alike
        value, before = extended(value, before, after, 0.0), [0] * axes
    return _CONVOLUTIONS[axes](value, weight, bias, strides, before, dilations, node.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(node: Node, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    strides, dilations = node.get("strides", [1] * axes), node.get("dilations", [1] * axes)
    pads = node.get("pads", [0] * 2 * axes)
    if node.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes or pads[:axes] != pads[axes:]:
        raise NotImplementedError("ConvTranspose with automatic or asymmetric padding")
    extra = node.get("output_padding", [0] * axes)
    return _TRANSPOSED[axes](value, weight, bias, strides, pads[:axes], extra, node.get("group", 1), dilations)


@operator("BatchNormalization")
def _batch_normalization(
    node: Node, value: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    if node.get("training_mode", 0):
        raise NotImplementedError("BatchNormalization in training mode")
    return functional.batch_norm(value, mean, variance, scale, bias, False, 0.0, node.get("epsilon", 1e-5))


@operator("InstanceNormalization")
def _instance_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(value, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


@operator("LayerNormalization")
def _layer_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", -1) % value.ndim
    shape = list(value.shape[axis:])
    epsilon = node.get("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        result = functional.layer_norm(value, shape, scale, bias, epsilon)
    else:
        result = functional.layer_norm(value, shape, eps=epsilon) * scale
        result = result if bias is None else result + bias
    if len(node.outputs) == 1:
        return (result,)
    variance, mean = torch.var_mean(value, list(range(axis, value.ndim)), correction=0, keepdim=True)
    return result, mean, torch.rsqrt(variance + epsilon)


@operator("GroupNormalization")
def _group_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.attributes["num_groups"]
    if scale.shape[0] == groups:  # up to opset 20 there was one scale per group
        repeats = value.shape[1] // groups
        scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return functional.group_norm(value, groups, scale, bias, node.get("epsilon", 1e-5))


@operator("RMSNormalization")
def _rms_normalization(node: Node, value: Tensor, scale: Tensor) -> Tensor:
    shape = list(value.shape[node.get("axis", -1) :])
    return functional.rms_norm(value, shape, eps=node.get("epsilon", 1e-5)) * scale


@operator("LRN")
def _lrn(node: Node, value: Tensor) -> Tensor:
    alpha, beta, bias = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    return functional.local_response_norm(value, node.attributes["size"], alpha, beta, bias)


@operator("LpNormalization")
def _lp_normalization(node: Node, value: Tensor) -> Tensor:
    return functional.normalize(value, p=node.get("p", 2), dim=node.get("axis", -1))


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    """Axes come as an attribute or, later, as an input; none at all means every axis, or each element by itself."""

    def reduce(node: Node, value: Tensor, axes: list[int] | None = None) -> Tensor:
        chosen = node.get("axes") if axes is None else axes
        if not chosen:
            if node.get("noop_with_empty_axes", 0):
                return function(
                    value.unsqueeze(0), [0], False
                )  # the square of a number that is alone is a square still
            chosen = list(range(value.ndim))
        return function(value, chosen, bool(node.get("keepdims", 1)))

    return reduce


def _product(value: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % value.ndim for axis in axes), reverse=True):  # torch multiplies over one axis at a time
        value = value.prod(axis, keep, dtype=value.dtype)
    return value


operator("ReduceMean", host=(1,))(_reduction(lambda value, axes, keep: value.mean(axes, keep)))
operator("ReduceSum", host=(1,))(_reduction(lambda value, axes, keep: value.sum(axes, keep, dtype=value.dtype)))
operator("ReduceMax", host=(1,))(_reduction(lambda value, axes, keep: value.amax(axes, keep)))
operator("ReduceMin", host=(1,))(_reduction(lambda value, axes, keep: value.amin(axes, keep)))
operator("ReduceL1", host=(1,))(_reduction(lambda value, axes, keep: value.abs().sum(axes, keep)))
operator("ReduceL2", host=(1,))(_reduction(lambda value, axes, keep: value.square().sum(axes, keep).sqrt()))
operator("ReduceSumSquare", host=(1,))(_reduction(lambda value, axes, keep: value.square().sum(axes, keep)))
operator("ReduceProd", host=(1,))(_reduction(_product))
operator("ReduceLogSum", host=(1,))(_reduction(lambda value, axes, keep: value.sum(axes, keep).log()))
operator("ReduceLogSumExp", host=(1,))(_reduction(lambda value, axes, keep: value.logsumexp(axes, keep)))


@operator("ArgMax")
def _arg_max(node: Node, value: Tensor) -> Tensor:
    return _arg(torch.argmax, node, value)


@operator("ArgMin")
def _arg_min(node: Node, value: Tensor) -> Tensor:
    return _arg(torch.argmin, node, value)


def _arg(function: Callable[..., Tensor], node: Node, value: Tensor) -> Tensor:
    axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
    if not node.get("select_last_index", 0):
        return function(value, dim=axis, keepdim=keep)
    return value.shape[axis] - 1 - function(value.flip(axis), dim=axis, keepdim=keep)


@operator("TopK", host=(1,))
def _top_k(node: Node, value: Tensor, count: list[int]) -> tuple[Tensor, Tensor]:
    axis = node.get("axis", -1)
    values, indices = torch.sort(value, dim=axis, descending=bool(node.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count[0]), indices.narrow(axis, 0, count[0])


@operator("CumSum", host=(1,))
def _cum_sum(node: Node, value: Tensor, axis: list[int]) -> Tensor:
    backwards = bool(node.get("reverse", 0))
    data = value.flip(axis) if backwards else value
    total = data.cumsum(axis[0], dtype=value.dtype)
    if node.get("exclusive", 0):
        total = total - data
    return total.flip(axis) if backwards else total


@operator("Resize", host=(3,))
def _resize(
    node: Node,
    value: Tensor,
    region: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: list[int] | None = None,
) -> Tensor:
    for option in ("antialias", "exclude_outside", "axes"):
        if node.get(option):
            raise NotImplementedError(f"Resize with {option}")
    if sizes is not None:
        size: list[int] | None = sizes[2:]
        factors = None
    else:
        assert scales is not None
        size, factors = None, scales.tolist()[2:]
    name, align = _interpolation(node, value.ndim - 2, size, factors)
    return functional.interpolate(value, size=size, scale_factor=factors, mode=name, align_corners=align)


def _interpolation(
    node: Node, axes: int, size: list[int] | None, factors: list[float] | None
) -> tuple[str, bool | None]:
    """The mode of torch that computes the same, and its way with corners."""
    mode = node.get("mode", "nearest")
    coordinates = node.get("coordinate_transformation_mode", "half_pixel")
    whole = factors is not None and all(factor == int(factor) for factor in factors)
    if mode == "nearest":
        rounding = node.get("nearest_mode", "round_prefer_floor")
        if coordinates == "asymmetric" and rounding == "floor":
            return "nearest", None
        if coordinates == "half_pixel" and rounding == "round_prefer_floor" and whole:
            return "nearest-exact", None
    elif mode == "cubic" and node.get("cubic_coeff_a", -0.75) != -0.75:
        raise NotImplementedError("Resize with another cubic coefficient than -0.75")
    else:
        name = "bicubic" if mode == "cubic" else {1: "linear", 2: "bilinear", 3: "trilinear"}[axes]
        several = size is not None and all(type(extent) is int and extent > 1 for extent in size)
        if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and (several or whole)):
            return name, False
        if coordinates == "align_corners" and (whole or size is not None):
            return name, True
    raise NotImplementedError(f"Resize with mode {mode!r} and coordinates {coordinates!r}")


@operator("GridSample")
def _grid_sample(node: Node, value: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.get("mode", "linear"), node.get("mode", "linear"))
    padding, align = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    return functional.grid_sample(value, grid, mode, padding, align)
