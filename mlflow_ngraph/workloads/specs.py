"""Convert inputs as users or model files declare them to tensor specifications, and find their batch axis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import UnsupportedError, WorkloadError
from mlflow_ngraph.workloads.base import BATCH, BatchAxis, TensorSpec, axis_of
from mlflow_ngraph.workloads.options import Options, SampledOptions
from mlflow_ngraph.workloads.random_inputs import is_position

DataType = Literal[
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


class InputOptions(Options):
    """One input of a model in a study file."""

    shape: list[int | Literal["batch"]]
    """Sizes; ``batch`` stands for the batch axis."""
    dtype: DataType = "float32"
    low: int = 0
    """Smallest value of an integer input."""
    high: int | None = None
    """One more than the largest value of an integer input; default: as the model tells, else 256 for images in uint8, and 2."""
    name: str | None = None
    """Default: ``input``, or ``input_0``, ``input_1``, ... when there are several."""

    @model_validator(mode="after")
    def _sensible(self) -> InputOptions:
        if any(size != BATCH and int(size) < 1 for size in self.shape):
            raise ValueError(f"sizes must be at least 1, found {self.shape}")
        if problem := _range_problem(self.dtype, self.low, self.low + 1 if self.high is None else self.high):
            raise ValueError(problem)
        return self

    def spec(self, name: str) -> TensorSpec:
        spec = TensorSpec(self.name or name, self.dtype, tuple(self.shape), self.low, self.low + _DEFAULT_RANGE)
        return _with_high(spec, self.high)


def _range_problem(dtype: str, low: int, high: int) -> str:
    """Fault of the bounds of an input's integers: ``low``, and one more than the largest; empty without any."""
    if high <= low:
        return f"high must be larger than low, found low {low} and high {high}"
    if dtype.lstrip("u") not in ("int8", "int16", "int32", "int64"):
        return ""
    ends = np.iinfo(dtype)
    if ends.min <= low and high - 1 <= ends.max:
        return ""
    return f"{dtype} holds {ends.min} to {ends.max}, found low {low} and high {high}"


_DEFAULT_RANGE = 2
"""Values of an integer input whose bound nobody knows: it may be a mask."""

_IMAGE, _BYTES = 3, 256
"""Axes from which on an input of bytes is an image, and the values of a byte."""


@contextmanager
def running(workload: str, inputs: Iterable[TensorSpec], batch: int) -> Iterator[None]:
    """Name the inputs in errors of the model's own code.

    Raises `WorkloadError` for any error within the block but a lack of memory or support.
    """
    try:
        yield
    except (MemoryError, UnsupportedError):
        raise
    except (Exception, SystemExit) as error:  # whatever the model's own code raises
        shapes = ", ".join(f"{spec.name} {spec.dtype}{list(spec.resolve(batch))}" for spec in inputs)
        raise WorkloadError(f"workload {workload} does not run on {shapes}: {one_line(error)}") from error


Inputs = list[InputOptions] | dict[str, InputOptions]


def named_specs(inputs: Inputs) -> tuple[TensorSpec, ...]:
    """Specifications of a list of inputs, or of a mapping from name to input."""
    if isinstance(inputs, dict):
        return tuple(entry.spec(name) for name, entry in inputs.items())
    if len(inputs) == 1:
        return (inputs[0].spec("input"),)
    return tuple(entry.spec(f"input_{position}") for position, entry in enumerate(inputs))


class FileOptions(SampledOptions):
    """Options for properties that a model file leaves open."""

    dims: dict[str, int] = Field(default_factory=dict)
    """Sizes of symbolic dimensions other than the batch axis: by symbol, or by ``input[axis]``."""
    high: int | None = Field(None, ge=1)
    """One more than the largest value of every integer input."""
    ranges: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """``[low, high]`` of single integer inputs; values are at least ``low`` and below ``high``."""

    @model_validator(mode="after")
    def _ordered(self) -> FileOptions:
        for name, (low, high) in self.ranges.items():
            if problem := _range_problem("int64", low, high):
                raise ValueError(f"ranges: {name}: {problem}")
        return self


_NO_BATCH = re.compile(r"(?i)^t$|seq|time|frame|step|token|len|height|width|channel")
"""Names of open axes that are no batch axes."""


@dataclass(frozen=True)
class DeclaredInput:
    """An input as a model file declares it."""

    name: str
    dtype: str
    sizes: Sequence[int | str | None]
    """Fixed sizes, symbols, or None where nothing is stated."""
    high: int | None = None
    """Bound of an integer input, as far as the file tells."""


def resolve(declared: Sequence[DeclaredInput], options: FileOptions, workload: str) -> tuple[TensorSpec, ...]:
    """Convert declarations to specifications.

    The batch axis is the open axis that is named or called so, else an open first one; other open axes need a size.

    Raises `WorkloadError` if an axis is left open, or an option names an unknown one.
    """
    if not declared:
        raise WorkloadError(
            f"workload {workload} has no inputs: its outputs are constant, and nothing is to be measured"
        )
    _require_known("ranges", options.ranges, [entry.name for entry in declared], workload)
    require_axes(options.batch_axis, declared, workload)
    sizes = {entry.name: [_size(entry, axis, options.dims) for axis in range(len(entry.sizes))] for entry in declared}
    symbols = {name for entry in declared for axis in range(len(entry.sizes)) for name in _names(entry, axis)}
    _require_known("dims", options.dims, symbols, workload)
    batch = _batch_symbols(
        sizes, {size for entry in declared for size in entry.sizes if isinstance(size, str)}, options
    )
    shapes = {name: tuple(BATCH if size in batch else size for size in entry) for name, entry in sizes.items()}
    open_axes = sorted(
        {str(size) for shape in shapes.values() for size in shape if size != BATCH and type(size) is str}
    )
    if open_axes:
        example = ", ".join(f"{name}: 16" for name in open_axes)
        asked = (
            "" if batch or options.batch_axis == "none" else "; no batch axis found: name one, such as batch_axis: 0"
        )
        raise WorkloadError(
            f"workload {workload} leaves sizes open: {', '.join(open_axes)}: give them, such as dims: {{{example}}}{asked}"
        )
    specs = (_with_high(TensorSpec(entry.name, entry.dtype, shapes[entry.name]), entry.high) for entry in declared)
    bounded = tuple(_bounded(spec, options) for spec in specs)
    for spec in bounded:
        if problem := _range_problem(spec.dtype, spec.low, spec.high):
            raise WorkloadError(
                f"workload {workload}: input {spec.name}: {problem}; give it a range of its own in ranges"
            )
    return bounded


def _with_high(spec: TensorSpec, high: int | None) -> TensorSpec:
    """Set an input's upper bound; positions without a known bound have the length of the sequence."""
    if high is None and is_position(spec.name) and spec.shape and isinstance(spec.shape[-1], int):
        high = spec.low + spec.shape[-1]
    elif high is None and spec.dtype == "uint8" and len(spec.shape) >= _IMAGE and "mask" not in spec.name.lower():
        high = _BYTES
    return spec if high is None else replace(spec, high=high)


def require_axes(named: BatchAxis | None, inputs: Sequence[TensorSpec | DeclaredInput], workload: str) -> None:
    """Check that the inputs have the batch axes that a user names.

    Raises `WorkloadError` for a missing input or axis, or if no input has a batch axis.
    """
    ranks = {entry.name: len(entry.shape if isinstance(entry, TensorSpec) else entry.sizes) for entry in inputs}
    _require_known("batch_axis", named if isinstance(named, dict) else (), ranks, workload)
    axes = {name: axis for name in ranks if named is not None and (axis := axis_of(name, named)) is not None}
    fitting = [name for name, axis in axes.items() if 0 <= axis < ranks[name]]
    if axes and (not fitting or (isinstance(named, dict) and len(fitting) < len(axes))):
        known = ", ".join(f"{name} has {ranks[name]}" for name in axes)
        raise WorkloadError(f"workload {workload}: batch_axis: no such axis: counted from 0, {known}")


def _batch_symbols(sizes: Mapping[str, Sequence[int | str]], symbols: set[str], options: FileOptions) -> set[str]:
    """Names of the batch axis: a symbol of the file, or its index."""
    named = options.batch_axis
    called = {size for entry in sizes.values() for size in entry if size in symbols and "batch" in str(size).lower()}
    if named is None and called:
        return {str(size) for size in called}
    first = {
        size
        for name, entry in sizes.items()
        if (axis := axis_of(name, named)) is not None and len(entry) > axis and isinstance(size := entry[axis], str)
    }
    return {size for size in first if named is not None or size not in symbols or not _NO_BATCH.search(size)}


def _size(entry: DeclaredInput, axis: int, dims: Mapping[str, int]) -> int | str:
    size = entry.sizes[axis]
    if isinstance(size, int):
        return size
    names = _names(entry, axis)
    return next((dims[name] for name in names if name in dims), names[-1])


def _names(entry: DeclaredInput, axis: int) -> list[str]:
    """Names of an open axis that users may use, the symbol last."""
    size = entry.sizes[axis]
    if isinstance(size, int):
        return []
    place = f"{entry.name}[{axis}]"
    return [place] if size is None else [place, size]


def _require_known(option: str, given: Iterable[str], known: Iterable[str], workload: str) -> None:
    known = sorted(known)
    for name in given:
        if name not in known:
            raise WorkloadError(f"workload {workload}: {option}: unknown {name!r}: known: {', '.join(known) or 'none'}")


def _bounded(spec: TensorSpec, options: FileOptions) -> TensorSpec:
    low, high = options.ranges.get(spec.name, (spec.low, options.high or spec.high))
    return replace(spec, low=low, high=high)
