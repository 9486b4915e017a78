"""Draw inputs of a model: samples of its user where there are any, random values elsewhere.

Some models are meaningless on random inputs: an input may be a shape, or indices that belong to another input.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[Any]]

FILE = "samples.npz"
"""File of the samples in materials, so that a later change of the user's file has no effect."""


def drawn(
    inputs: Sequence[TensorSpec], samples: Sequence[NDArray[Any]] | None, batch: int, rng: np.random.Generator
) -> Arrays:
    """Draw a batch of inputs.

    A batch takes the first of the ``samples`` of each input, and repeats them where it is larger; None draws random
    values.
    """
    if samples is None:
        return [spec.random(batch, rng) for spec in inputs]
    return [take_samples(spec, array, range(batch)) for spec, array in zip(inputs, samples, strict=True)]


def take_samples(spec: TensorSpec, array: NDArray[Any], samples: range) -> NDArray[Any]:
    """Take samples of an input, repeated from the first one on; all of an input without batch axis."""
    for axis, size in enumerate(spec.shape):
        if size == BATCH:
            array = np.take(array, np.asarray(samples) % array.shape[axis], axis)
    return array


def stored_samples(directory: Path) -> Arrays | None:
    """Samples in the materials, in the order of the inputs, or None."""
    path = directory / FILE
    if not path.is_file():
        return None
    with np.load(path) as content:
        return [content[f"arr_{index}"] for index in range(len(content.files))]
