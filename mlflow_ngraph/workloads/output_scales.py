"""Bands of output elements that are always much smaller than the others, such as scores beside boxes in pixels.

Errors are relative to the largest element of a sample, which would hide errors of the small ones. So these are compared
by themselves as well, band by band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.sample_arrays import blocks, flat, rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Band = NDArray[np.int8]
    """The band of each element of a sample; 0 for those that are as large as the largest one now and then."""

WIDTH = 32.0
"""Ratio of the elements of two bands. Errors of elements that are smaller by less show without a band."""
MOST = 3
"""The last band, of everything that is smaller still."""


def bands(runs: Sequence[Sequence[NDArray[Any]]]) -> list[Band | None]:
    """Bands of each output, from the outputs (``runs``) for several inputs; None where an output has one band."""
    return [_of_one(output) for output in zip(*runs, strict=True)]


def parts(array: NDArray[Any], band: Band | None) -> list[NDArray[np.float64]]:
    """Elements of each band but the first, with a row a sample; empty for a single band, or another size."""
    if band is None:
        return []
    matrix = rows(array)
    return [matrix[:, band == number] for number in _numbers(band)] if matrix.shape[1] == band.size else []


def _numbers(band: Band) -> list[int]:
    return [number for number in range(1, MOST + 1) if (band == number).any()]


def _of_one(arrays: Sequence[NDArray[Any]]) -> Band | None:
    if any(array.dtype.kind != "f" for array in arrays):
        return None
    several = [flat(array) for array in arrays]
    if len({samples.shape[1] for samples in several}) > 1:
        return None
    # How large each element is beside the largest of its sample, at most.
    shares = np.zeros(several[0].shape[1])
    for some in (run[places] for run in several for places in blocks(run)):
        sizes = np.abs(some, dtype=np.float64)
        largest = sizes.max(axis=1, initial=0.0, keepdims=True)
        usable = (np.isfinite(largest) & (largest > 0))[:, 0]
        np.maximum(shares, (sizes[usable] / largest[usable]).max(axis=0, initial=0.0), out=shares)
    if not shares.any():
        return None
    with np.errstate(divide="ignore"):
        band = np.minimum(-np.log(shares) / np.log(WIDTH), MOST).astype(np.int8)
    return band if band.any() else None
