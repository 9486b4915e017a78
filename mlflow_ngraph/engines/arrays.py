"""Convert and check the inputs that callers give an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.random_inputs import is_position

if TYPE_CHECKING:
    from numpy.typing import NDArray


def input_arrays(given: Mapping[str, Any] | Sequence[Any], specs: Sequence[TensorSpec]) -> list[NDArray[Any]]:
    """Convert the inputs, by name or in order, to NumPy arrays in the order of ``specs``.

    They may be NumPy arrays, numbers, or anything with DLPack in the host's memory. Raises `UsageError` for a missing
    or unknown input, another type or shape, or an array on a device.
    """
    names = [spec.name for spec in specs]
    if isinstance(given, Mapping):
        unknown, missing = [name for name in given if name not in names], [name for name in names if name not in given]
        if unknown or missing:
            problem = f"no input is called {unknown[0]!r}" if unknown else f"input {missing[0]!r} is missing"
            raise UsageError(f"{problem}: the engine takes {', '.join(names)}")
        values = [given[name] for name in names]
    else:
        if isinstance(given, np.generic) or hasattr(given, "__dlpack__"):
            raise UsageError(f"expected inputs by name or in a list, found a single array: the engine takes {names}")
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise UsageError(
                f"expected inputs by name or in a list, found {type(given).__name__}: the engine takes {names}"
            )
        values = list(given)
        if len(values) != len(specs):
            raise UsageError(f"the engine takes {len(specs)} inputs ({', '.join(names)}), not {len(values)}")
    arrays = [_array(value, spec) for value, spec in zip(values, specs, strict=True)]
    samples(arrays, specs)
    return arrays


def samples(arrays: Sequence[NDArray[Any]], specs: Sequence[TensorSpec]) -> int | None:
    """Batch size of ``arrays``; None where no input has a batch axis. Raises `UsageError` if inputs differ in it."""
    sizes = {
        spec.name: array.shape[spec.shape.index(BATCH)]
        for array, spec in zip(arrays, specs, strict=True)
        if BATCH in spec.shape
    }
    if len(set(sizes.values())) > 1:
        raise UsageError(f"inputs have different batch sizes: {sizes}")
    return next(iter(sizes.values()), None)


def check_integers(arrays: Sequence[NDArray[Any]], specs: Sequence[TensorSpec], widest: str | None) -> None:
    """Refuse integers that the workload does not have, or that its runtime would cut to other ones.

    Runtimes compute something from either, mostly without a word. Raises `UsageError`.
    ``widest`` is `Compiler.widest_integer` of the engine.
    """
    for array, spec in zip(arrays, specs, strict=True):
        if array.dtype.kind not in "iu" or not array.size:
            continue
        limits = np.iinfo(array.dtype if widest is None else widest)
        low, high = int(limits.min), int(limits.max)
        if _has_range(spec):
            # Engines are warmed up with zeros, so these are taken in any case.
            low, high = max(low, min(spec.low, 0)), min(high, max(spec.high - 1, 0))
        if int(array.min()) < low or int(array.max()) > high:
            found = f"{array.min()} to {array.max()}"
            raise UsageError(f"input {spec.name!r} has values of {found}, the engine takes {low} to {high}")


def _has_range(spec: TensorSpec) -> bool:
    """True if somebody has said which values an integer input has, as a user or a table of the model."""
    count = spec.high - spec.low
    as_long = is_position(spec.name) and spec.shape[-1:] == (count,)
    hashed = spec.high >= np.iinfo(spec.dtype).max
    return count != TensorSpec.high - TensorSpec.low and not as_long and not hashed


def _array(value: Any, spec: TensorSpec) -> NDArray[Any]:
    if isinstance(value, np.ndarray) and np.any(getattr(value, "mask", False)):
        raise UsageError(f"input {spec.name!r} has masked values, which an engine would take for numbers: fill them")
    # What NumPy makes of an array without axes is often a number of its own.
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else _from_dlpack(value, spec)
    if array.dtype != np.dtype(spec.dtype):
        raise UsageError(f"input {spec.name!r} is {array.dtype}, the engine takes {spec.dtype}")
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (BATCH, size) for size, wanted in zip(array.shape, spec.shape, strict=True)
    )
    if not fits:
        wanted = "(" + ", ".join(map(str, spec.shape)) + ")"
        raise UsageError(f"input {spec.name!r} has shape {array.shape}, the engine takes {wanted}")
    return array


def _from_dlpack(value: Any, spec: TensorSpec) -> NDArray[Any]:
    if not hasattr(value, "__dlpack__"):
        raise UsageError(f"input {spec.name!r} is a {type(value).__name__}: give a NumPy array, or one with DLPack")
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"input {spec.name!r} cannot be read in the host's memory: {reason}") from None
