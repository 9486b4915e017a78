"""ONNX operators in torch, mostly elementwise: arithmetic, logic, activations, casts; also softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import onnx
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph_onnx.values import OPERATORS, Node, Operator, operator

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": lambda value: torch.erf(value).to(value.dtype),
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": lambda value: value,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": lambda value: torch.where(torch.isnan(value), value, torch.sign(value)),  # torch's own of NaN is 0
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}

_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}


_CASTS = frozenset(
    [
        "BOOL",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "FLOAT16",
        "BFLOAT16",
        "FLOAT",
        "DOUBLE",
        "COMPLEX64",
        "COMPLEX128",
    ]
)
"""Element types that torch casts to as the standard says; those of eight bits and fewer saturate in several ways."""

_BROADCAST = frozenset({"axis", "broadcast"})
"""Attributes by which binary operators before opset 7 align the second operand."""


def _beside(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Second operand with its axes aligned."""
    if "axis" not in node.attributes:
        return b
    return b.reshape(*b.shape, *[1] * (a.ndim - node.attributes["axis"] % a.ndim - b.ndim))


def _register_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, value: function(value), frozenset())


def _register_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, a, b: function(a, _beside(node, a, b)), frozenset(), _BROADCAST)


def _register_variadic(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, *values: reduce(function, values), frozenset())


for _name, _unary in _UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in _BINARY.items():
    _register_binary(_name, _binary)
for _name, _variadic in _VARIADIC.items():
    _register_variadic(_name, _variadic)


@operator("Div", attributes="axis broadcast")
def _div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, _beside(node, a, b), rounding_mode=None if a.is_floating_point() else "trunc")


@operator("Mod", attributes="fmod")
def _mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


@operator("Pow", attributes="axis broadcast")
def _pow(node: Node, base: Tensor, exponent: Tensor) -> Tensor:
    exponent = _beside(node, base, exponent)
    return torch.pow(base, exponent.to(base.dtype) if base.is_floating_point() else exponent).to(base.dtype)


@operator("Mean")
def _mean(node: Node, *values: Tensor) -> Tensor:
    return reduce(torch.add, values) / len(values)


@operator("Where")
def _where(node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@operator("Clip", attributes="max min")
def _clip(node: Node, value: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if node.opset < 11:  # then they were attributes, and never left out
        largest = min(torch.finfo(kind).max for kind in (torch.float32, value.dtype))
        return torch.clamp(value, node.get("min", -largest), node.get("max", largest))
    if low is not None:
        value = torch.clamp(value, min=low)
    return value if high is None else torch.clamp(value, max=high)


@operator("Cast", attributes="round_mode saturate to")
def _cast(node: Node, value: Tensor) -> Tensor:
    return value.to(torch_type(node.attributes["to"]))


@operator("CastLike", attributes="round_mode saturate")
def _cast_like(node: Node, value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.dtype)


@operator("Dropout", attributes="is_test ratio seed")
def _dropout(
    node: Node, value: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if (training is not None and bool(training)) or (node.opset < 7 and not node.get("is_test", 0)):
        raise NotImplementedError("Dropout in training mode")
    return value, torch.ones_like(value, dtype=torch.bool if node.opset >= 10 else value.dtype)


@operator("IsInf", attributes="detect_negative detect_positive")
def _is_inf(node: Node, value: Tensor) -> Tensor:
    negative = torch.isneginf(value) if node.get("detect_negative", 1) else torch.zeros_like(value, dtype=torch.bool)
    positive = torch.isposinf(value) if node.get("detect_positive", 1) else torch.zeros_like(value, dtype=torch.bool)
    return negative | positive


@operator("LeakyRelu", attributes="alpha")
def _leaky_relu(node: Node, value: Tensor) -> Tensor:
    return functional.leaky_relu(value, node.get("alpha", 0.01))


@operator("PRelu")
def _prelu(node: Node, value: Tensor, slope: Tensor) -> Tensor:
    if node.opset < 7 and slope.numel() > 1:  # one slope per channel then
        slope = slope.reshape(-1, *[1] * (value.ndim - 2))
    return torch.where(value < 0, slope * value, value)


@operator("ThresholdedRelu", attributes="alpha")
def _thresholded_relu(node: Node, value: Tensor) -> Tensor:
    return torch.where(value > node.get("alpha", 1.0), value, torch.zeros_like(value))


@operator("Shrink", attributes="bias lambd")
def _shrink(node: Node, value: Tensor) -> Tensor:
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    inner = torch.where(value > limit, value - bias, torch.zeros_like(value))
    return torch.where(value < -limit, value + bias, inner).to(value.dtype)


@operator("Elu", attributes="alpha")
def _elu(node: Node, value: Tensor) -> Tensor:
    return functional.elu(value, node.get("alpha", 1.0))


@operator("Celu", attributes="alpha")
def _celu(node: Node, value: Tensor) -> Tensor:
    return functional.celu(value, node.get("alpha", 1.0))


@operator("Selu", attributes="alpha gamma")
def _selu(node: Node, value: Tensor) -> Tensor:
    alpha, gamma = (1.6732632423543772, 1.0507009873554805) if node.opset >= 6 else (1.6732, 1.0507)
    return node.get("gamma", gamma) * functional.elu(value, node.get("alpha", alpha))


@operator("HardSigmoid", attributes="alpha beta")
def _hard_sigmoid(node: Node, value: Tensor) -> Tensor:
    return torch.clamp(value * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1)


@operator("HardSwish")
def _hard_swish(node: Node, value: Tensor) -> Tensor:
    return functional.hardswish(value)


@operator("Swish", attributes="alpha")
def _swish(node: Node, value: Tensor) -> Tensor:
    return value * torch.sigmoid(value * node.get("alpha", 1.0))


@operator("Gelu", attributes="approximate")
def _gelu(node: Node, value: Tensor) -> Tensor:
    return functional.gelu(value, approximate=node.get("approximate", "none"))


@operator("Softmax", attributes="axis")
def _softmax(node: Node, value: Tensor) -> Tensor:
    return _over_axis(torch.softmax, node, value)


@operator("LogSoftmax", attributes="axis")
def _log_softmax(node: Node, value: Tensor) -> Tensor:
    return _over_axis(torch.log_softmax, node, value)


@operator("Hardmax", attributes="axis")
def _hardmax(node: Node, value: Tensor) -> Tensor:
    return _over_axis(
        lambda given, dim: functional.one_hot(given.argmax(dim), given.shape[dim]).movedim(-1, dim).to(given.dtype),
        node,
        value,
    )


def _over_axis(function: Callable[..., Tensor], node: Node, value: Tensor) -> Tensor:
    """Apply over an axis, where opsets before 13 flatten to a matrix."""
    if node.opset >= 13:
        return function(value, dim=node.get("axis", -1))
    axis = node.get("axis", 1) % max(value.ndim, 1)
    rows, columns = math.prod(value.shape[:axis]), math.prod(value.shape[axis:])
    return function(value.reshape(rows, columns), dim=1).reshape(value.shape)


def torch_type(element_type: int) -> torch.dtype:
    """Torch type of an ONNX element type.

    Raises `NotImplementedError` if torch lacks it, or rounds to it otherwise than the standard.
    """
    name = onnx.TensorProto.DataType.Name(element_type)
    if name not in _CASTS:
        raise NotImplementedError(f"Cast to {name}")
    kind: torch.dtype = getattr(torch, onnx.helper.tensor_dtype_to_np_dtype(element_type).name)
    return kind
