"""Inputs of a model: samples of its user where there are any, random values elsewhere.

Some models mean nothing on random inputs: an input may be a shape, or indices that belong to another input.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[Any]]

FILE = "samples.npz"
"""Where materials keep the samples, so that a file that changes during a study changes nothing."""


def drawn(
    inputs: Sequence[TensorSpec], samples: Sequence[NDArray[Any]] | None, batch: int, rng: np.random.Generator
) -> Arrays:
    """A batch of inputs.

    Parameters
    ----------
    samples : Sequence[NDArray[Any]] | None
        An array for each input, of which the batch takes the first ones, and all of them again where it is larger; None
        draws random values.
    """
    if samples is None:
        return [spec.random(batch, rng) for spec in inputs]
    return [_batch(spec, array, batch) for spec, array in zip(inputs, samples, strict=True)]


def _batch(spec: TensorSpec, array: NDArray[Any], batch: int) -> NDArray[Any]:
    for axis, size in enumerate(spec.shape):
        if size == BATCH:
            array = np.take(array, np.arange(batch) % array.shape[axis], axis)
    return array


def given(path: str | None, inputs: Sequence[TensorSpec], workload: str) -> Arrays | None:
    """As `read`, where the options of a workload name a file; None where they do not."""
    return None if path is None else read(Path(path), inputs, workload)


def read(path: Path, inputs: Sequence[TensorSpec], workload: str) -> Arrays:
    """The samples in a file of arrays by input name, in the order of the inputs.

    Raises
    ------
    WorkloadError
        There is no such file, it lacks an input or has one too many, or an array does not suit its input.
    """
    place = f"workload {workload}: samples {path}"
    arrays = _arrays(path, place)
    names = [spec.name for spec in inputs]
    if sorted(arrays) != sorted(names):
        raise WorkloadError(
            f"{place}: has {_listed(sorted(arrays))}, the model takes {_listed(names)}: "
            "save one array under the name of each input"
        )
    for spec in inputs:
        _check(spec, arrays[spec.name], place)
    counts = {name: count for spec in inputs for name, count in _count(spec, arrays[spec.name])}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise WorkloadError(f"{place}: has {said}: give as many samples of each input")
    return [arrays[name] for name in names]


def kept(directory: Path) -> Arrays | None:
    """The samples that materials hold, in the order of the inputs, or None."""
    path = directory / FILE
    if not path.is_file():
        return None
    with np.load(path) as content:
        return [content[f"arr_{index}"] for index in range(len(content.files))]


def _arrays(path: Path, place: str) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise WorkloadError(f"{place}: no such file: paths are relative to the directory where the study is started")
    try:
        with zipfile.ZipFile(path) as archive:
            strangers = [name for name in archive.namelist() if not name.endswith(".npy")]
        if strangers:
            raise ValueError(f"it holds {strangers[0]}")
        with np.load(path) as content:
            return {name: content[name] for name in content.files}
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise WorkloadError(f"{place}: is no .npz file of plain arrays, as numpy.savez writes it: {reason}") from error


def _check(spec: TensorSpec, array: NDArray[Any], place: str) -> None:
    wanted = ", ".join(map(str, spec.shape))
    if array.dtype != np.dtype(spec.dtype):
        raise WorkloadError(f"{place}: {spec.name!r} is {array.dtype}, the model takes {spec.dtype}")
    fits = array.ndim == len(spec.shape) and all(
        have > 0 if size == BATCH else have == size for have, size in zip(array.shape, spec.shape, strict=True)
    )
    if not fits:
        raise WorkloadError(f"{place}: {spec.name!r} has shape {list(array.shape)}, the model takes [{wanted}]")


def _count(spec: TensorSpec, array: NDArray[Any]) -> list[tuple[str, int]]:
    return [(spec.name, have) for have, size in zip(array.shape, spec.shape, strict=True) if size == BATCH]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
