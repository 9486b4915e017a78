"""Draw plausible values for an input without samples, by its name and type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Role = Literal["numbers", "truth values", "integers", "mask", "padding", "positions"]
"""Roles of inputs. A mask has ones for valid elements, a padding has ones for invalid ones."""
_TWO = 2
_MATRIX = 2
"""Axes from which on a sample has something to be masked."""


def role(name: str, dtype: str, shape: tuple[Any, ...], low: int, high: int) -> Role:
    """Role of an input, by its name and type.

    The first axis of ``shape`` holds the samples, if any; ``high`` is one more than the largest value.
    """
    kind, called = np.dtype(dtype).kind, name.lower()
    if kind not in "iub":
        return "numbers"
    if "mask" in called and len(shape) >= _MATRIX and (kind == "b" or (low, high) == (0, _TWO)):
        return "padding" if "padding" in called else "mask"
    if kind == "b":
        return "truth values"
    return "positions" if is_position(called) else "integers"


def is_position(name: str) -> bool:
    """True if an input holds positions in a sequence."""
    return "position" in name.lower()


def random(
    name: str, dtype: str, shape: tuple[int, ...], low: int, high: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Draw samples along the first axis; they differ but for positions.

    ``high`` is one more than the largest value.
    """
    array: NDArray[Any]
    match role(name, dtype, shape, low, high):
        case "mask":
            array = lengths(rng, shape)
        case "padding":
            array = 1 - lengths(rng, shape)
        case "positions":
            array = in_order(shape, low, high)
        case "truth values":
            array = rng.integers(0, _TWO, shape)
        case "integers":
            array = rng.integers(low, high, shape, dtype=np.int64)
        case _:
            array = np.asarray(rng.standard_normal(shape, np.float32 if dtype == "float32" else np.float64))
    return np.asarray(array, dtype)


def described(name: str, dtype: str, shape: tuple[Any, ...], low: int, high: int) -> str:
    """Describe the values of `random`."""
    match role(name, dtype, shape, low, high):
        case "mask":
            return "ones, as many as each sample is long, at least one, then zeros"
        case "padding":
            return "zeros, as many as each sample is long, at least one, then ones"
        case "positions":
            return f"positions in order, from {low} to {high - 1} at most"
        case "truth values":
            return "true or false"
        case "integers":
            return f"integers from {low} to {high - 1}"
        case _:
            return "standard normal"


def lengths(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Ones along the last axis, at least one, and zeros behind: a tokenizer's mask of texts of different lengths."""
    long = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    return (np.arange(shape[-1]) < long).astype(np.int64)


def in_order(shape: tuple[int, ...], low: int, high: int, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
    """Ascending integers along the last axis, from ``low`` on; they repeat where the range is shorter.

    ``rng`` draws the start within the range; None starts at its lower end.
    """
    length = shape[-1] if shape else 1
    first = 0 if rng is None else int(rng.integers(0, max(1, high - low - length + 1)))
    row = low + (first + np.arange(length)) % (high - low)
    return np.array(np.broadcast_to(row if shape else row[0], shape), np.int64)
