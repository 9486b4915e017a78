"""Base of the ONNX operators: node, registry of implementations, and values (tensors, small host integer arrays).

Shapes computed inside a graph (``Shape``, ``Gather``, ``Concat``, ``Reshape``) must not become tensors: a tensor's
values are unknown while torch.export traces, and the batch size could not stay symbolic. So such values are NumPy
arrays, of dtype object where they hold symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Host: TypeAlias = NDArray[Any]
Value: TypeAlias = torch.Tensor | Host | None
"""None stands for an optional input that a node leaves out."""


@dataclass(frozen=True)
class Node:
    """One operator of a graph with its attributes."""

    operator: str
    opset: int
    """Version of the operator set, which decides what attributes and inputs mean."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)


Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """Implementation of an operator: a function of the node and its inputs."""

    function: Function
    host_inputs: frozenset[int]
    """Positions of the inputs that are passed as lists of integers; the others are tensors."""
    attributes: frozenset[str] = frozenset()
    """Those that the function obeys, or that change nothing about what it computes."""

    def run(self, node: Node, values: list[Value], device: torch.device) -> Any:
        """Convert the inputs to the function's forms, and call it."""
        arguments = [
            value if value is None else integers(value) if position in self.host_inputs else tensor(value, device)
            for position, value in enumerate(values)
        ]
        return self.function(node, *arguments)


OPERATORS: dict[str, Operator] = {}
"""Implementations of operators on tensors."""

HOST_OPERATORS: dict[str, Function] = {}
"""Implementations of operators on host values; they take the node and the arrays."""

F = TypeVar("F", bound=Function)


def operator(*names: str, host: tuple[int, ...] = (), attributes: str = "") -> Callable[[F], F]:
    """Register a function for operators with some attributes, separated by spaces; nodes with others are refused.

    ``host`` has the positions of the inputs that are lists of integers.
    """

    def register(function: F) -> F:
        for name in names:
            OPERATORS[name] = Operator(function, frozenset(host), frozenset(attributes.split()))
        return function

    return register


def host_operator(*names: str) -> Callable[[F], F]:
    """Register a function for operators whose inputs are all host values."""

    def register(function: F) -> F:
        for name in names:
            HOST_OPERATORS[name] = function
        return function

    return register


def tensor(value: torch.Tensor | Host, device: torch.device) -> torch.Tensor:
    """Convert a value to a tensor; sizes are int64, as ``Shape`` has them."""
    if isinstance(value, torch.Tensor):
        return value
    if value.dtype == object:
        return torch.tensor(value.tolist(), dtype=torch.int64, device=device)
    return torch.tensor(value, device=device)


def integers(value: torch.Tensor | Host) -> list[int]:
    """Convert a value to a list of integers, some of which may be symbolic."""
    if list(value.shape) == [0]:
        return []  # a program that takes no elements out of a tensor without any can be exported, and not read again
    result: list[int] = value.reshape(-1).tolist()
    return result


def host(sizes: list[Any]) -> Host:
    """Convert sizes to a host value."""
    if torch.jit.is_tracing():  # sizes are tensors then; the trace is for one shape anyway
        sizes = [int(size) for size in sizes]
    if all(type(size) is int for size in sizes):
        return np.array(sizes, dtype=np.int64)
    return np.array(sizes, dtype=object)
