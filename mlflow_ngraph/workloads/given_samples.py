"""Load samples that a user names, from a file or a function. For child processes only."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads import own_code
from mlflow_ngraph.workloads.base import BATCH, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[Any]]


def load_samples(source: str | None, inputs: Sequence[TensorSpec], workload: str) -> Arrays | None:
    """Samples that the options of a workload name, in the order of its inputs; None where there are none.

    ``source`` is a file of arrays by input name, or a function that returns them: ``module:function`` or
    ``file.py:function``.

    Raises `WorkloadError` if the source does not exist, its names are not those of the inputs, or an array does not
    fit.
    """
    if source is None:
        return None
    place = f"workload {workload}: samples {source}"
    origin, colon, function = source.rpartition(":")
    made = bool(colon) and function.isidentifier()
    arrays = _made(origin, function, place) if made else _arrays(Path(source), place)
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


def _made(origin: str, name: str, place: str) -> dict[str, NDArray[Any]]:
    """Call the user's function with seeded random numbers, so that every process gets the same samples."""
    from mlflow_ngraph.workloads.initialise import seeded

    try:
        with seeded(0):
            found = getattr(_imported(origin), name)()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise WorkloadError(f"{place}: {one_line(error)}") from error
    if not isinstance(found, Mapping):
        raise WorkloadError(f"{place}: it returned {type(found).__name__}: return a mapping from input name to array")
    return {str(key): np.asarray(value) for key, value in found.items()}


def _imported(origin: str) -> Any:
    """Import a module by name, also from the current directory, or a Python file."""
    if not origin.endswith(".py"):
        own_code.add_current_directory()
        return importlib.import_module(origin)
    if not Path(origin).is_file():
        raise WorkloadError("no such file: paths are relative to the directory where the study is started")
    found = spec_from_file_location(Path(origin).stem, origin)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


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
