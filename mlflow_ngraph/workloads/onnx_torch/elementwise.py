"""Operators that treat every element alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import onnx
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_ngraph.workloads.onnx_torch.values import OPERATORS, Node, Operator, operator

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
    "Erf": torch.erf,
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
    "Sign": torch.sign,
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


def _register_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, value: function(value), frozenset())


def _register_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, a, b: function(a, b), frozenset())


def _register_variadic(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    OPERATORS[name] = Operator(lambda node, *values: reduce(function, values), frozenset())


for _name, _unary in _UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in _BINARY.items():
    _register_binary(_name, _binary)
for _name, _variadic in _VARIADIC.items():
    _register_variadic(_name, _variadic)


@operator("Div")
def _div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


@operator("Mod")
def _mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


@operator("Pow")
def _pow(node: Node, base: Tensor, exponent: Tensor) -> Tensor:
    return torch.pow(base, exponent.to(base.dtype) if base.is_floating_point() else exponent).to(base.dtype)


@operator("Mean")
def _mean(node: Node, *values: Tensor) -> Tensor:
    return reduce(torch.add, values) / len(values)


@operator("Where")
def _where(node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@operator("Clip")
def _clip(node: Node, value: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    minimum = node.get("min") if low is None else low
    maximum = node.get("max") if high is None else high
    if minimum is not None:
        value = torch.clamp(value, min=minimum)
    return value if maximum is None else torch.clamp(value, max=maximum)


@operator("Cast")
def _cast(node: Node, value: Tensor) -> Tensor:
    return value.to(torch_type(node.attributes["to"]))


@operator("CastLike")
def _cast_like(node: Node, value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.dtype)


@operator("Dropout")
def _dropout(
    node: Node, value: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if training is not None and bool(training):
        raise NotImplementedError("Dropout in training mode")
    return value, torch.ones_like(value, dtype=torch.bool)


@operator("IsInf")
def _is_inf(node: Node, value: Tensor) -> Tensor:
    negative = torch.isneginf(value) if node.get("detect_negative", 1) else torch.zeros_like(value, dtype=torch.bool)
    positive = torch.isposinf(value) if node.get("detect_positive", 1) else torch.zeros_like(value, dtype=torch.bool)
    return negative | positive


@operator("LeakyRelu")
def _leaky_relu(node: Node, value: Tensor) -> Tensor:
    return functional.leaky_relu(value, node.get("alpha", 0.01))


@operator("PRelu")
def _prelu(node: Node, value: Tensor, slope: Tensor) -> Tensor:
    return torch.where(value < 0, slope * value, value)


@operator("ThresholdedRelu")
def _thresholded_relu(node: Node, value: Tensor) -> Tensor:
    return torch.where(value > node.get("alpha", 1.0), value, torch.zeros_like(value))


@operator("Shrink")
def _shrink(node: Node, value: Tensor) -> Tensor:
    limit, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    inner = torch.where(value > limit, value - bias, torch.zeros_like(value))
    return torch.where(value < -limit, value + bias, inner).to(value.dtype)


@operator("Elu")
def _elu(node: Node, value: Tensor) -> Tensor:
    return functional.elu(value, node.get("alpha", 1.0))


@operator("Celu")
def _celu(node: Node, value: Tensor) -> Tensor:
    return functional.celu(value, node.get("alpha", 1.0))


@operator("Selu")
def _selu(node: Node, value: Tensor) -> Tensor:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return gamma * functional.elu(value, alpha)


@operator("HardSigmoid")
def _hard_sigmoid(node: Node, value: Tensor) -> Tensor:
    return torch.clamp(value * node.get("alpha", 0.2) + node.get("beta", 0.5), 0, 1)


@operator("HardSwish")
def _hard_swish(node: Node, value: Tensor) -> Tensor:
    return functional.hardswish(value)


@operator("Swish")
def _swish(node: Node, value: Tensor) -> Tensor:
    return value * torch.sigmoid(value * node.get("alpha", 1.0))


@operator("Gelu")
def _gelu(node: Node, value: Tensor) -> Tensor:
    return functional.gelu(value, approximate=node.get("approximate", "none"))


@operator("Softmax")
def _softmax(node: Node, value: Tensor) -> Tensor:
    return _over_axis(torch.softmax, node, value)


@operator("LogSoftmax")
def _log_softmax(node: Node, value: Tensor) -> Tensor:
    return _over_axis(torch.log_softmax, node, value)


def _over_axis(function: Callable[..., Tensor], node: Node, value: Tensor) -> Tensor:
    """Before opset 13 an axis meant: flatten to a matrix there."""
    if node.opset >= 13:
        return function(value, dim=node.get("axis", -1))
    axis = node.get("axis", 1) % max(value.ndim, 1)
    rows = math.prod(value.shape[:axis])
    return function(value.reshape(rows, -1), dim=1).reshape(value.shape)


def torch_type(element_type: int) -> torch.dtype:
    """The torch type of an ONNX element type."""
    kind: torch.dtype = getattr(torch, onnx.helper.tensor_dtype_to_np_dtype(element_type).name)
    return kind
