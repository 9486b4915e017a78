"""ONNX operators that combine elements: products, convolutions, normalisation, reductions, resampling."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph_onnx.pooling import extended, paddings
from mlflow_ngraph_onnx.values import Node, operator

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


@operator("Gemm", attributes="alpha beta broadcast transA transB")
def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    left = a.t() if node.get("transA", 0) else a
    right = b if node.get("transB", 0) else b.t()
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if not a.is_floating_point() and (alpha, beta) != (1.0, 1.0):
        raise NotImplementedError("Gemm of integers with alpha or beta")
    if alpha == 1.0 and beta == 1.0 and (c is None or c.ndim == 1):
        return functional.linear(left, right, c)
    product = functional.linear(left, right)
    product = product if alpha == 1.0 else alpha * product
    return product if c is None else product + (c if beta == 1.0 else beta * c)


@operator("Det")
def _det(node: Node, value: Tensor) -> Tensor:
    return torch.linalg.det(value)


@operator("Einsum", attributes="equation")
def _einsum(node: Node, *values: Tensor) -> Tensor:
    return torch.einsum(node.attributes["equation"], *values)


@operator("Conv", attributes="auto_pad dilations group kernel_shape pads strides")
def _conv(node: Node, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    strides, dilations = node.get("strides", [1] * axes), node.get("dilations", [1] * axes)
    before, after = paddings(node, value.shape[2:], weight.shape[2:], strides, dilations)
    if before != after:  # torch pads both sides alike
        value, before = extended(value, before, after, 0.0), [0] * axes
    return _CONVOLUTIONS[axes](value, weight, bias, strides, before, dilations, node.get("group", 1))


@operator("ConvTranspose", attributes="auto_pad dilations group kernel_shape output_padding output_shape pads strides")
def _conv_transpose(node: Node, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axes = weight.ndim - 2
    strides, dilations = node.get("strides", [1] * axes), node.get("dilations", [1] * axes)
    pads = node.get("pads", [0] * 2 * axes)
    if node.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes or pads[:axes] != pads[axes:]:
        raise NotImplementedError("ConvTranspose with automatic or asymmetric padding")
    extra = node.get("output_padding", [0] * axes)
    return _TRANSPOSED[axes](value, weight, bias, strides, pads[:axes], extra, node.get("group", 1), dilations)


@operator("BatchNormalization", attributes="epsilon is_test momentum spatial training_mode")
def _batch_normalization(
    node: Node, value: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    trains = not node.get("is_test", 0) if node.opset < 7 else node.get("training_mode", 0) or len(node.outputs) > 1
    if trains:
        raise NotImplementedError("BatchNormalization in training mode")
    if not node.get("spatial", 1):
        raise NotImplementedError("BatchNormalization of each position by itself")
    return functional.batch_norm(value, mean, variance, scale, bias, False, 0.0, node.get("epsilon", 1e-5))


@operator("InstanceNormalization", attributes="epsilon")
def _instance_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    if math.prod(value.shape[2:]) > 1:
        return functional.instance_norm(value, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))
    # Torch refuses one element, of which its own mean leaves nothing but a rounding.
    centred = value - value.mean(list(range(2, value.ndim)), keepdim=True)
    normal = centred * torch.rsqrt(centred.square() + node.get("epsilon", 1e-5))
    return normal * _channels(scale, value) + _channels(bias, value)


def _channels(parameter: Tensor, value: Tensor) -> Tensor:
    return parameter.reshape(-1, *[1] * (value.ndim - 2))


@operator("MeanVarianceNormalization", attributes="axes")
def _mean_variance_normalization(node: Node, value: Tensor) -> Tensor:
    axes = node.get("axes", [0, 2, 3])
    centred = value - value.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)


@operator("LayerNormalization", attributes="axis epsilon stash_type")
def _layer_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    _require_float_stash(node)
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
    variance, mean = torch.var_mean(value.float(), list(range(axis, value.ndim)), correction=0, keepdim=True)
    return result, mean, torch.rsqrt(variance + epsilon)


def _require_float_stash(node: Node) -> None:
    """Refuse statistics of another type than float, which torch uses for halves, too."""
    if node.get("stash_type", 1) != onnx.TensorProto.FLOAT:
        raise NotImplementedError(f"{node.operator} with stash_type {node.get('stash_type')}")


@operator("GroupNormalization", attributes="epsilon num_groups stash_type")
def _group_normalization(node: Node, value: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    _require_float_stash(node)
    groups = node.attributes["num_groups"]
    if scale.shape[0] == groups:  # up to opset 20 there was one scale per group
        repeats = value.shape[1] // groups
        scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return functional.group_norm(value, groups, scale, bias, node.get("epsilon", 1e-5))


@operator("RMSNormalization", attributes="axis epsilon stash_type")
def _rms_normalization(node: Node, value: Tensor, scale: Tensor) -> Tensor:
    _require_float_stash(node)
    shape = list(value.shape[node.get("axis", -1) :])
    return functional.rms_norm(value, shape, eps=node.get("epsilon", 1e-5)) * scale


@operator("LRN", attributes="alpha beta bias size")
def _lrn(node: Node, value: Tensor) -> Tensor:
    alpha, beta, bias = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    size = node.attributes["size"]
    if size % 2:
        return functional.local_response_norm(value, size, alpha, beta, bias)
    # With an even size torch looks at one more channel before, ONNX at one more behind.
    around = torch.constant_pad_nd(value.square(), [0, 0] * (value.ndim - 2) + [size // 2 - 1, size // 2])
    return value / (bias + alpha / size * around.unfold(1, size, 1).sum(-1)) ** beta


@operator("LpNormalization", attributes="axis p")
def _lp_normalization(node: Node, value: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(value, node.get("p", 2), node.get("axis", -1), keepdim=True)
    return torch.where(norm == 0, 0, value / norm)


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[..., Tensor]:
    """Reduction whose axes are an attribute or, later, an input; none means all axes, or no reduction."""

    def reduce(node: Node, value: Tensor, axes: list[int] | None = None) -> Tensor:
        chosen = node.get("axes") if axes is None else axes
        if not chosen:
            if node.get("noop_with_empty_axes", 0):  # each element by itself: squares, magnitudes, logarithms
                return function(value.unsqueeze(-1), [-1], False)
            chosen = list(range(value.ndim))
        return function(value, chosen, bool(node.get("keepdims", 1)))

    return reduce


def _of_floats(function: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Tensor, list[int], bool], Tensor]:
    """Refuse integers in a reduction for which the standard leaves the result open."""

    def reduce(value: Tensor, axes: list[int], keep: bool) -> Tensor:
        if not value.is_floating_point():
            raise NotImplementedError("a mean, a logarithm or a root over integers")
        return function(value, axes, keep)

    return reduce


def _total(value: Tensor, axes: list[int], keep: bool) -> Tensor:
    return value.sum(axes, keep, dtype=value.dtype)  # torch adds integers up in 64 bits


def _product(value: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % value.ndim for axis in axes), reverse=True):  # torch multiplies over one axis at a time
        value = value.prod(axis, keep, dtype=value.dtype)
    return value


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceMean": _of_floats(lambda value, axes, keep: value.mean(axes, keep)),
    "ReduceSum": _total,
    "ReduceMax": lambda value, axes, keep: value.amax(axes, keep),
    "ReduceMin": lambda value, axes, keep: value.amin(axes, keep),
    "ReduceL1": lambda value, axes, keep: _total(value.abs(), axes, keep),
    "ReduceL2": _of_floats(lambda value, axes, keep: value.square().sum(axes, keep).sqrt()),
    "ReduceSumSquare": lambda value, axes, keep: _total(value.square(), axes, keep),
    "ReduceProd": _product,
    "ReduceLogSum": _of_floats(lambda value, axes, keep: value.sum(axes, keep).log()),
    "ReduceLogSumExp": _of_floats(lambda value, axes, keep: value.logsumexp(axes, keep)),
}
for _name, _function in _REDUCTIONS.items():
    operator(_name, host=(1,), attributes="axes keepdims noop_with_empty_axes")(_reduction(_function))


@operator("ArgMax", attributes="axis keepdims select_last_index")
def _arg_max(node: Node, value: Tensor) -> Tensor:
    return _arg(torch.argmax, node, value)


@operator("ArgMin", attributes="axis keepdims select_last_index")
def _arg_min(node: Node, value: Tensor) -> Tensor:
    return _arg(torch.argmin, node, value)


def _arg(function: Callable[..., Tensor], node: Node, value: Tensor) -> Tensor:
    axis, keep = node.get("axis", 0), bool(node.get("keepdims", 1))
    if not node.get("select_last_index", 0):
        return function(value, dim=axis, keepdim=keep)
    return value.shape[axis] - 1 - function(value.flip(axis), dim=axis, keepdim=keep)


@operator("TopK", host=(1,), attributes="axis largest sorted")
def _top_k(node: Node, value: Tensor, count: list[int]) -> tuple[Tensor, Tensor]:
    axis = node.get("axis", -1)
    values, indices = torch.sort(value, dim=axis, descending=bool(node.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count[0]), indices.narrow(axis, 0, count[0])


@operator("CumSum", host=(1,), attributes="exclusive reverse")
def _cum_sum(node: Node, value: Tensor, axis: list[int]) -> Tensor:
    backwards = bool(node.get("reverse", 0))
    data = value.flip(axis) if backwards else value
    total = data.cumsum(axis[0], dtype=value.dtype)
    if node.get("exclusive", 0):  # moved by one: to subtract the elements would lose what is small beside them
        nothing = torch.zeros_like(total.sum(axis, keepdim=True, dtype=total.dtype))
        total = torch.cat((nothing, total), axis[0]).narrow(axis[0], 0, data.shape[axis[0]])
    return total.flip(axis) if backwards else total


@operator(
    "Resize",
    host=(3,),
    attributes="antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value "
    "keep_aspect_ratio_policy mode nearest_mode",
)
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
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotImplementedError("Resize with keep_aspect_ratio_policy")
    size: list[int] | None = None
    factors: list[float] | None = None
    if sizes:
        same, size = sizes[:2] == list(value.shape[:2]), sizes[2:]
    elif scales is not None:
        given = scales.tolist()
        same, factors = given[:2] == [1.0, 1.0], given[2:]
    else:
        raise NotImplementedError("Resize as it was before opset 11")
    if not same or value.ndim < 3:
        raise NotImplementedError("Resize of other axes than the spatial ones")
    if not value.is_floating_point() and node.get("mode", "nearest") != "nearest":
        raise NotImplementedError("Resize between integers")
    name, align = _interpolation(node, value.ndim - 2, size, factors)
    return functional.interpolate(value, size=size, scale_factor=factors, mode=name, align_corners=align)


def _interpolation(
    node: Node, axes: int, size: list[int] | None, factors: list[float] | None
) -> tuple[str, bool | None]:
    """Torch's interpolation mode and its alignment of corners."""
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


@operator("GridSample", attributes="align_corners mode padding_mode")
def _grid_sample(node: Node, value: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.get("mode", "linear"), node.get("mode", "linear"))
    padding, align = node.get("padding_mode", "zeros"), bool(node.get("align_corners", 0))
    return functional.grid_sample(value, grid, mode, padding, align)
