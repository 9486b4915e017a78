"""Tensors of the Open Inference Protocol: their types by name, and their values as JSON and as bytes."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.text import shortened
from mlflow_ngraph.workloads.base import BATCH
from mlflow_ngraph_serve.refusal import malformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.base import TensorSpec

DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
"""NumPy's names by those of the protocol. BYTES and BF16 have none: engines have neither."""
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""Types of JSON values, by the kind of the element type."""


@cache
def datatype(dtype: str | np.dtype[Any]) -> str:
    """Name of an element type in the protocol."""
    return _NAMES[np.dtype(dtype).name]


def shape(spec: TensorSpec) -> list[int]:
    """The shape as the protocol writes it: -1 where the size is the request's."""
    return [-1 if size == BATCH else int(size) for size in spec.shape]


def check_shape(given: Any, spec: TensorSpec) -> tuple[int, ...]:
    """The shape that a client gave for an input.

    Raises
    ------
    Refusal
        It is no shape, or not one that the engine takes.
    """
    if not isinstance(given, list) or not all(type(size) is int and size >= 0 for size in given):
        raise malformed(f"input {spec.name!r}: shape must be a list of sizes")
    fits = len(given) == len(spec.shape) and all(
        wanted in (BATCH, size) for size, wanted in zip(given, spec.shape, strict=True)
    )
    if not fits or 0 in given:
        wanted = ", ".join("1 or more" if size == BATCH else str(size) for size in spec.shape)
        raise malformed(f"input {spec.name!r} has shape {shortened(given)}, the engine takes [{wanted}]")
    return tuple(given)


def from_bytes(content: bytes | memoryview, sizes: tuple[int, ...], spec: TensorSpec) -> NDArray[Any]:
    """An input from little-endian, row-major bytes, without a copy where the machine is little-endian too.

    Raises
    ------
    Refusal
        There are too few or too many bytes, or a truth value is neither 0 nor 1.
    """
    dtype = np.dtype(spec.dtype)
    view = memoryview(content)
    expected = math.prod(sizes) * dtype.itemsize
    if view.nbytes != expected:
        raise malformed(f"input {spec.name!r} has {view.nbytes} bytes, its shape needs {shortened(expected)}")
    array = np.frombuffer(view, dtype.newbyteorder("<")).astype(dtype, copy=False)
    if dtype.kind == "b" and np.any(np.frombuffer(view, np.uint8) > 1):
        raise malformed(f"input {spec.name!r} has truth values that are neither 0 nor 1")
    return array.reshape(sizes)


def from_json(values: Any, sizes: tuple[int, ...], spec: TensorSpec) -> NDArray[Any]:
    """An input from JSON, nested like the shape, which is a number by itself where there are no axes, or flat in row-major order.

    Raises
    ------
    Refusal
        It is no list of numbers, there are too few or too many, or one is out of the type's range.
    """
    if not isinstance(values, list) and sizes:
        raise malformed(f"input {spec.name!r}: data must be a list")
    array = numbers(values, spec)
    if array.shape != sizes and not (array.ndim == 1 and array.size == math.prod(sizes)):
        raise malformed(
            f"input {spec.name!r}: data has shape {list(array.shape)}, its shape is {shortened(list(sizes))}"
        )
    return array.reshape(sizes)


def numbers(values: Any, spec: TensorSpec) -> NDArray[Any]:
    """A number or nested lists of numbers as an array of an input's type.

    Raises
    ------
    Refusal
        They are not numbers of this type, or the lists are not equally long.
    """
    dtype = np.dtype(spec.dtype)
    # As objects first: NumPy would take truth for numbers, and make room for the longest text that is among them.
    objects = np.array(values, dtype=object)
    flat = objects.ravel().tolist()
    if not set(map(type, flat)) <= _TYPES[dtype.kind]:
        raise malformed(f"input {spec.name!r}: data must be {_described(dtype)}, nested like the shape or flat")
    if dtype.kind in "iu" and flat and not np.iinfo(dtype).min <= min(flat) <= max(flat) <= np.iinfo(dtype).max:
        raise malformed(f"input {spec.name!r}: data is out of the range of {datatype(dtype)}")
    try:
        with np.errstate(over="ignore"):
            cast = objects.astype(dtype)
    except OverflowError:
        cast = np.array([np.inf])
    if dtype.kind == "f" and not np.isfinite(cast).all():
        raise malformed(f"input {spec.name!r}: data is out of the range of {datatype(dtype)}")
    return cast


def to_json(array: NDArray[Any]) -> list[Any]:
    """The elements in row-major order; None for numbers that JSON lacks: infinite ones and NaN."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [value if math.isfinite(value) else None for value in flat]
    return flat


def to_bytes(array: NDArray[Any]) -> bytes:
    """Elements in row-major order, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _described(dtype: np.dtype[Any]) -> str:
    names = {"b": "true or false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}
    return f"{names[dtype.kind]}, for {datatype(dtype)}"
