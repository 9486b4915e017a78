"""Divide a batch into the sizes of an engine (exact, padded or split), and join the outputs; runs no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[Any]]

Batching = Literal["exact", "pad", "split"]
"""Handling of a batch size that an engine was not compiled for: refused; filled up to the next larger one; or
cut into pieces of those sizes, of which the last one is filled up."""


@dataclass(frozen=True)
class Piece:
    """Part of a batch, and the batch size that it runs at."""

    start: int
    samples: int
    size: int


def check_batching(text: str) -> Batching:
    """Check the name of a way of batching. Raises `UsageError` for any other."""
    for known in get_args(Batching):
        if text == known:
            return known  # type: ignore[no-any-return] # it is one of them
    raise UsageError(f"batching is exact, pad or split, not {text!r}")


def pieces(samples: int, sizes: Sequence[int], batching: Batching) -> list[Piece]:
    """Divide a batch of ``samples`` for an engine with these batch sizes.

    Raises `UsageError` if it cannot be divided in this way.
    """
    known = sorted(sizes)
    if samples in known:
        return [Piece(0, samples, samples)]
    shown = f"the engine has batch size{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}, not {samples}"
    if samples < 1:
        raise UsageError(f"{shown}: a batch has at least one sample")
    if batching == "exact":
        raise UsageError(f"{shown}: ask for batching='pad' or batching='split'")
    if batching == "pad" and samples > known[-1]:
        raise UsageError(f"{shown}: padding makes batches larger only, ask for batching='split'")
    parts, start = [], 0
    while start < samples:
        left = samples - start
        fitting = [size for size in known if size <= left]
        size = fitting[-1] if fitting and batching == "split" else next(size for size in known if size >= left)
        parts.append(Piece(start, min(left, size), size))
        start += size
    return parts


def inseparable(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], mixes: str) -> str:
    """Reason why a sample cannot be computed in another batch, such as ``mixes``; empty where it can."""
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            if BATCH not in spec.shape:
                return f"{kind} {spec.name!r} has no batch axis"
    return f"samples influence each other: {mixes}" if mixes else ""


def take_piece(arrays: Sequence[NDArray[Any]], specs: Sequence[TensorSpec], piece: Piece) -> Arrays:
    """Samples of a piece, the last one repeated until the piece is full."""
    last = piece.start + piece.samples - 1
    indices = np.minimum(np.arange(piece.start, piece.start + piece.size), last)
    return [np.take(array, indices, axis=_axis(spec)) for array, spec in zip(arrays, specs, strict=True)]


def join(parts: Sequence[tuple[Piece, Arrays]], specs: Sequence[TensorSpec]) -> Arrays:
    """Join the outputs of all pieces, without those of repeated samples."""
    joined = []
    for index, spec in enumerate(specs):
        axis = _axis(spec)
        kept = [np.take(outputs[index], np.arange(piece.samples), axis=axis) for piece, outputs in parts]
        joined.append(np.concatenate(kept, axis=axis))
    return joined


def _axis(spec: TensorSpec) -> int:
    return spec.shape.index(BATCH)
