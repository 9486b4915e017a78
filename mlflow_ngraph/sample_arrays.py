"""Arrays of samples: as matrices with a row a sample, a few rows at a time, and written to files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 2**18
"""Numbers in a block, unless a sample has more."""


def rows(array: NDArray[Any]) -> NDArray[np.float64]:
    """Reshape to a matrix in double precision with one row a sample; a scalar is one sample."""
    return np.asarray(flat(array), dtype=np.float64)


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """The same in the array's own type, without a copy unless it is complex: the two parts of each number are columns."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim > 1 else array.reshape(array.size, 1)


def blocks(matrix: NDArray[Any]) -> Iterator[slice]:
    """Rows of a matrix, a few at a time: copies of all outputs of a batch may take gigabytes, and no cache of a processor."""
    step = max(1, _AT_ONCE // max(1, matrix.shape[1]))
    return (slice(start, start + step) for start in range(0, len(matrix), step))


def save_arrays(path: Path, *arrays: NDArray[Any], **named: NDArray[Any]) -> None:
    """Write a file of arrays atomically."""
    temporary = path.with_name(f"partial-{path.name}")  # NumPy insists on the suffix
    np.savez(temporary, *arrays, **named)  # type: ignore[arg-type]
    temporary.replace(path)
