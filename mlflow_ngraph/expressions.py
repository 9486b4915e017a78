"""Arithmetic expressions of users: names, numbers, ``+ - * / **`` and a few functions. Parsed, never run as code."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches

FUNCTIONS: dict[str, tuple[int, Callable[..., float]]] = {
    "sqrt": (1, math.sqrt),
    "exp": (1, math.exp),
    "log": (1, math.log),
    "log2": (1, math.log2),
    "log10": (1, math.log10),
    "abs": (1, abs),
    "min": (2, min),
    "max": (2, max),
}
"""Functions by name, with how many arguments they take; ``min`` and ``max`` take that many or more."""
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.Pow: math.pow,
}
_LONGEST = 500
"""Characters; whoever needs more wants a program."""
_KNOWN = 12
"""Names that a message lists when none is close."""


class Expression:
    """A formula over named numbers. Raises `ValueError` for anything else, with the reason and its place."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError(f"a formula has at most {_LONGEST} characters, this one {len(text)}")
        try:
            self._root = ast.parse(text.strip(), mode="eval").body
            names = _names(self._root)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"{text[:100]!r} is no formula: {_reason(error)}") from None
        self.text = text
        self.names = frozenset(names)
        """The names that need a number."""

    def check(self, known: Collection[str]) -> None:
        """Raise `ValueError` for the first unknown name, and suggest the closest known one."""
        for name in sorted(self.names - set(known)):
            close = get_close_matches(name, known, n=1)
            listed = ", ".join(sorted(known)[:_KNOWN])
            hint = f"did you mean {close[0]!r}?" if close else f"known are {listed}, ..."
            raise ValueError(f"unknown name {name[:100]!r} in {self.text[:100]!r}: {hint}")

    def value(self, numbers: Mapping[str, float]) -> float:
        """Evaluate the expression; NaN where a number is missing or there is no value."""
        try:
            value = float(_value(self._root, numbers))
        except (KeyError, ValueError, ZeroDivisionError, OverflowError):
            return math.nan
        return value if math.isfinite(value) else math.nan


def _names(node: ast.expr) -> set[str]:
    """Collect the names below a node, and refuse nodes that are not allowed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _names(node.left) | _names(node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _names(node.operand)
    if isinstance(node, ast.Call):
        return _names_of_call(node)
    raise ValueError(f"{ast.unparse(node)!r} is no arithmetic: write names, numbers, + - * / ** and {_functions()}")


def _names_of_call(node: ast.Call) -> set[str]:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        raise ValueError(f"unknown function {ast.unparse(node.func)!r}: known are {_functions()}")
    name = node.func.id
    count, function = FUNCTIONS[name]
    several = function in (min, max)
    if node.keywords or len(node.args) < count or (len(node.args) > count and not several):
        raise ValueError(f"{name} takes {count}{' or more' if several else ''} {'numbers' if count > 1 else 'number'}")
    return {variable for argument in node.args for variable in _names(argument)}


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type] # `_names` let numbers through alone
    if isinstance(node, ast.Name):
        return float(numbers[node.id])
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, numbers)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, numbers), _value(node.right, numbers))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id][1](*(_value(argument, numbers) for argument in node.args))


def _functions() -> str:
    return ", ".join(FUNCTIONS)


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg}, at character {error.offset}"
    return "it is nested too deeply"
