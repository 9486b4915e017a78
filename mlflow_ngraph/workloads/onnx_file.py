"""Read what an ONNX file says about its inputs, without its weights. For child processes only."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.specs import DeclaredInput

_DEFAULT_HIGH = 2
_OF_NUMPY = 1
"""What NumPy says of its own types; types of eight bits and fewer are those of another package."""
_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer need not be an input."""
_PASS_THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators behind which an index is still the same index."""


def read(path: Path) -> onnx.ModelProto:
    """The model without external data.

    Raises
    ------
    WorkloadError
        The file is missing, damaged, empty or incomplete.
    """
    if not path.is_file():
        raise WorkloadError(f"no ONNX file {path}: paths are relative to the directory where the study is started")
    try:
        model = onnx.load(str(path), load_external_data=False)
        files = external_files(model)
        # The checker refuses a file of weights that has a second name elsewhere, as each has in a cache: it sees none.
        onnx.checker.check_model(_without_external_data(model) if files else str(path))
    except (DecodeError, onnx.checker.ValidationError, OSError) as error:
        raise WorkloadError(f"{path} is no valid ONNX file: {' '.join(str(error).split())}") from error
    for file in files:
        if not (path.parent / file).is_file():
            raise WorkloadError(f"{path} keeps weights in {file}, which is not beside it")
    return model


def load(path: Path) -> onnx.ModelProto:
    """The model with all its weights.

    ``onnx.load`` refuses a file of weights that has a second name elsewhere, as each has in a cache.

    Raises
    ------
    WorkloadError
        A file of weights lies outside the directory of the model, or is too short.
    """
    model = onnx.load(str(path), load_external_data=False)
    external_files(model)  # refuses those outside
    for tensor in _external(model.graph):
        about = {entry.key: entry.value for entry in tensor.external_data}
        with (path.parent / about["location"]).open("rb") as file:
            file.seek(int(about.get("offset", 0)))
            content = file.read(int(about.get("length", -1)))
        if "length" in about and len(content) < int(about["length"]):
            raise WorkloadError(f"{path} keeps {tensor.name!r} in {about['location']}, which is too short")
        tensor.raw_data = content
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return model


def _without_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every tensor that lies in another file is empty."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for tensor in _external(copied.graph):
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.dims[:] = [0]
    return copied


def declared_inputs(model: onnx.ModelProto, path: Path) -> list[DeclaredInput]:
    """The inputs of the graph; initializers that older files list among them are none.

    Raises
    ------
    WorkloadError
        An input is no tensor, has no element type NumPy knows, or states no shape.
    """
    constants = _constants(model.graph)
    bounds = _index_bounds(model.graph)
    declared = []
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise WorkloadError(f"{path}: input {value.name!r} is no tensor with a shape")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind not in "fiub" or dtype.isbuiltin != _OF_NUMPY:
            name = onnx.TensorProto.DataType.Name(kind.elem_type)
            raise WorkloadError(f"{path}: input {value.name!r} has type {name}: allowed: float, integer and bool types")
        sizes = [_size(dimension) for dimension in kind.shape.dim]
        declared.append(DeclaredInput(value.name, dtype.name, sizes, bounds.get(value.name, _DEFAULT_HIGH)))
    return declared


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None


def _index_bounds(graph: onnx.GraphProto) -> dict[str, int]:
    """For every input that picks rows of a table: the length of the shortest such table."""
    origin = {value.name: value.name for value in graph.input}
    sizes = {initializer.name: list(initializer.dims) for initializer in graph.initializer}
    bounds: dict[str, int] = {}
    for node in graph.node:
        source = node.input[0] if node.input else ""
        if node.op_type in _PASS_THROUGH:
            if source in origin:
                origin[node.output[0]] = origin[source]
            if source in sizes and node.op_type == "Identity":
                sizes[node.output[0]] = sizes[source]
        if node.op_type == "Gather" and source in sizes and node.input[1] in origin:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            name = origin[node.input[1]]
            bounds[name] = min(sizes[source][axis], bounds.get(name, sizes[source][axis]))
    return bounds


def copy(source: Path, target: Path, dims: Mapping[str, int]) -> None:
    """Copy a file with its external data, with sizes in place of symbols, and with initializers as constants.

    Raises
    ------
    WorkloadError
        Its external data lies outside its directory.
    """
    model = read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    for file in external_files(model):
        destination = target.parent / file
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / file, destination)
    constants = _constants(model.graph)
    if not dims and not any(value.name in constants for value in model.graph.input):
        shutil.copyfile(source, target)
        return
    _fix(model, dims)
    _freeze(model, constants)
    onnx.save(model, str(target))


def _constants(graph: onnx.GraphProto) -> set[str]:
    """The names of the initializers."""
    sparse = {initializer.values.name for initializer in graph.sparse_initializer}
    return {initializer.name for initializer in graph.initializer} | sparse


def _freeze(model: onnx.ModelProto, constants: Container[str]) -> None:
    """Take initializers from among the inputs, where files before IR version 4 had to list them.

    ONNX Runtime folds none that a caller could replace, and lists those that it removed as inputs that it then demands.
    """
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, _FREE_INITIALIZERS)


def _fix(model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Put sizes in place of symbols wherever they are stated."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value"):
                continue
            for name in (f"{value.name}[{axis}]", dimension.dim_param):
                if name in dims:
                    dimension.dim_value = dims[name]
                    break


def external_files(model: onnx.ModelProto) -> list[str]:
    """Relative paths of the files that hold weights of the model.

    Raises
    ------
    WorkloadError
        One lies outside the directory of the model.
    """
    locations = sorted(set(_locations(model.graph)))
    for location in locations:
        path = PurePosixPath(location)
        if path.is_absolute() or ".." in path.parts:
            raise WorkloadError(f"the ONNX file keeps weights outside its own directory, in {location}")
    return locations


def _locations(graph: onnx.GraphProto) -> Iterator[str]:
    for tensor in _external(graph):
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _external(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose values lie in another file, those within attributes and branches too."""
    tensors = [*graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                yield from _external(inner)
    yield from (tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL)
