"""Elements of an output that are always much smaller than its others, such as scores beside boxes in pixels.

Errors are relative to the largest element of a sample, beside which nothing would show that is wrong with the small ones. So
these are compared by themselves as well, band by band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph import parity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Band = NDArray[np.int8]
    """The band of each element of a sample; 0 for those that are as large as the largest one now and then."""

WIDTH = 32.0
"""How many times smaller the elements of the next band are. What is smaller by less has errors that show beside the others."""
MOST = 3
"""The last band, of everything that is smaller still."""


def bands(runs: Sequence[Sequence[NDArray[Any]]]) -> list[Band | None]:
    """The bands of each output, from what a model gives for several inputs; None where all is of one.

    Parameters
    ----------
    runs : Sequence[Sequence[NDArray[Any]]]
        The outputs for each input, in the order of the model's.
    """
    return [_of_one(output) for output in zip(*runs, strict=True)]


def parts(array: NDArray[Any], band: Band | None) -> list[NDArray[np.float64]]:
    """The elements of each band but the first, with a row for each sample; empty where there is one band, or another size.

    Parameters
    ----------
    array : NDArray[Any]
        An output, batch axis first.
    band : Band | None
        As `bands` gives it.
    """
    if band is None:
        return []
    rows = parity.rows(array)
    return [rows[:, band == number] for number in _numbers(band)] if rows.shape[1] == band.size else []


def _numbers(band: Band) -> list[int]:
    return [number for number in range(1, MOST + 1) if (band == number).any()]


def _of_one(arrays: Sequence[NDArray[Any]]) -> Band | None:
    if any(array.dtype.kind != "f" for array in arrays):
        return None
    several = [parity.rows(array) for array in arrays]
    if len({rows.shape[1] for rows in several}) > 1:
        return None
    rows = np.abs(np.concatenate(several))
    rows = rows[np.isfinite(rows).all(axis=1)]
    largest = rows.max(axis=1, initial=0.0, keepdims=True)
    if not largest.any():
        return None
    # How large each element is beside the largest of its sample, at most.
    shares = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0).max(axis=0)
    with np.errstate(divide="ignore"):
        band = np.minimum(-np.log(shares) / np.log(WIDTH), MOST).astype(np.int8)
    return band if band.any() else None
