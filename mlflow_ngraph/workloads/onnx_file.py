"""Read and copy ONNX files: inputs, weights in other files, functions. For child processes only.

ONNX's own functions refuse external data in a link or a file with a second name, which could point to any file. Caches
of models are made of links, however, this package's own and those of the hubs that people download from. So external
data are read here, from below the model's directory and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx.external_data_helper import uses_external_data

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.file import copied, require_content
from mlflow_ngraph.workloads.specs import DeclaredInput

_OF_NUMPY = 1
"""NumPy's mark of its own types; types of eight bits and fewer are another package's."""
_FREE_INITIALIZERS = 4
"""The first IR version in which an initializer need not be an input."""
_WITH_TENSORS = frozenset(
    f"onnx.{kind}Proto" for kind in ("Graph", "Node", "Attribute", "Function", "Tensor", "SparseTensor")
)
"""Messages that can contain a tensor."""
_ANY = 2**63 - 1
_PASS_THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators behind which an index is still the same index."""


def read(path: Path) -> onnx.ModelProto:
    """Read the model without external data.

    Raises `WorkloadError` if the file is missing, damaged, empty, incomplete or no model.
    """
    model = _parsed(path)
    outside = [tensor for tensor in tensors(model) if uses_external_data(tensor)]
    for tensor in outside:
        _place(tensor, path)
    try:
        if _is_read_otherwise(model):
            onnx.checker.check_model(_as_runtimes_read(_without_external_data(_parsed(path))))
        else:
            onnx.checker.check_model(str(path))  # a model as large as a file of protobuf can be
    except onnx.checker.ValidationError as error:
        raise WorkloadError(f"{path} is no valid ONNX file: {' '.join(str(error).split())}") from error
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise WorkloadError(f"{path}: output {value.name!r} is no tensor: export the model with tensors only")
    return model


def _parsed(path: Path) -> onnx.ModelProto:
    require_content(path, "ONNX file")
    try:
        return onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise WorkloadError(
            f"{path} is no valid ONNX file: it is cut short, damaged or something else: fetch or export it again ({reason})"
        ) from error


def _without_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy of a model with external tensors empty, for other checks."""
    for tensor in tensors(model):
        if uses_external_data(tensor):
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.dims[:] = [0]
    return model


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _is_read_otherwise(model: onnx.ModelProto) -> bool:
    """True if runtimes read a model that the checker refuses, or the checker would read external files."""
    values = (*model.graph.input, *model.graph.output)
    outside = any(map(uses_external_data, tensors(model)))
    return outside or model.ir_version < _FREE_INITIALIZERS or any(map(_lacks_shape, values))


def _as_runtimes_read(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy of a model with fields that only the checker wants, for other checks."""
    model.ir_version = max(model.ir_version, _FREE_INITIALIZERS)
    for value in filter(_lacks_shape, (*model.graph.input, *model.graph.output)):
        value.type.tensor_type.shape.SetInParent()
    return model


def load_tensor(tensor: onnx.TensorProto, path: Path) -> onnx.TensorProto:
    """Load a tensor's external data of the model in ``path``, if it has any.

    Raises `WorkloadError` if its file is missing, too short, or outside the model's directory.
    """
    if not uses_external_data(tensor):
        return tensor
    file, offset, length = _place(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        content = stream.read(length)
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content)


def load_whole(path: Path) -> onnx.ModelProto:
    """Load the model in ``path`` with all external data.

    Raises `WorkloadError` if their file is missing, too short, or outside the model's directory.
    """
    model = _parsed(path)
    _fill(model, path)
    return model


def embed_external_data(path: Path, source: Path) -> None:
    """Copy external data beside ``source`` into the model in ``path``.

    Raises `WorkloadError` if their file is missing, too short, or outside the source's directory.
    """
    model = _parsed(path)
    if _fill(model, source):
        onnx.save(model, str(path))


def _fill(model: onnx.ModelProto, path: Path) -> bool:
    """Load the external data beside ``path`` into a model; whether there were any."""
    apart = [tensor for tensor in tensors(model) if uses_external_data(tensor)]
    for tensor in apart:
        tensor.CopyFrom(load_tensor(tensor, path))
    return bool(apart)


def _place(tensor: onnx.TensorProto, path: Path) -> tuple[Path, int, int]:
    """File, offset and length of a tensor's external data.

    Raises `WorkloadError` if the file is missing, too short, or outside the model's directory.
    """
    said = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(said.get("location", ""))
    if not location.parts or location.is_absolute() or ".." in location.parts:
        raise WorkloadError(f"{path} keeps weights outside its own directory, in {str(location)!r}: put them beside it")
    file = path.parent / location
    if not file.is_file():
        raise WorkloadError(f"{path} keeps weights in {location}, which is not beside it: put that file there, too")
    size = file.stat().st_size
    try:
        offset = int(said.get("offset", 0))
        length = int(said.get("length", max(0, size - offset)))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0:
        raise WorkloadError(
            f"{path} is no valid ONNX file: it does not say which part of {location} is {tensor.name!r}"
        )
    if offset + length > size:
        require_content(file, "file of weights")
        raise WorkloadError(
            f"{file} is cut short: it has {size} bytes, and {path.name} wants {offset + length}: fetch or export it again"
        )
    return file, offset, length


def tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers, attributes of nodes, and those of inner graphs and of functions."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, content in message.ListFields():
        if field.message_type is not None and field.message_type.full_name in _WITH_TENSORS:
            for inner in content if isinstance(content, Iterable) else [content]:
                yield from tensors(inner)


def declared_inputs(model: onnx.ModelProto, path: Path) -> list[DeclaredInput]:
    """Inputs of the graph without initializers, which older files list among them.

    Raises `WorkloadError` if an input is no tensor, has no element type NumPy knows, or states no shape.
    """
    constants = _constants(model.graph)
    bounds = _index_bounds(model.graph)
    declared = []
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise WorkloadError(
                f"{path}: input {value.name!r} is no tensor with a shape: export the model with one, symbols are allowed"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind not in "fiub" or dtype.isbuiltin != _OF_NUMPY:
            name = onnx.TensorProto.DataType.Name(kind.elem_type)
            raise WorkloadError(
                f"{path}: input {value.name!r} has type {name}: allowed: float16, float32, float64, integers of 8 to 64 bits "
                "and bool: let the model cast one of these"
            )
        sizes = [_size(dimension) for dimension in kind.shape.dim]
        high = bounds.get(value.name)
        if high is not None and dtype.kind in "iu":
            high = min(high, int(np.iinfo(dtype).max))
        declared.append(DeclaredInput(value.name, dtype.name, sizes, high))
    return declared


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None


def _index_bounds(graph: onnx.GraphProto) -> dict[str, int]:
    """Length of the shortest table that each input indexes, without a bound where it is hashed before."""
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
        if node.op_type == "Mod" and source in origin:  # makes an index of whatever integer: of a hash
            bounds.setdefault(origin[source], _ANY)
        if node.op_type == "Gather" and source in sizes and node.input[1] in origin:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            name = origin[node.input[1]]
            bounds[name] = min(sizes[source][axis], bounds.get(name, sizes[source][axis]))
    return bounds


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the model's functions: not every runtime supports them."""
    if not model.functions:
        return model
    functions = {(function.domain, function.name): function for function in model.functions}
    for node in _nodes(model):
        function = functions.get((node.domain, node.op_type))
        given = {attribute.name for attribute in node.attribute}
        # The inliner leaves out what a call leaves to its default.
        defaults = function.attribute_proto if function else ()
        node.attribute.extend(attribute for attribute in defaults if attribute.name not in given)
    plain: onnx.ModelProto = onnx.inliner.inline_local_functions(model)
    return plain


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph, its functions, and their subgraphs."""
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            waiting.extend(inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node)


def copy(source: Path, target: Path, dims: Mapping[str, int], put: Callable[[Path, Path], None] = copied) -> None:
    """Copy a file with its external data, with fixed sizes, constant initializers, and inlined functions."""
    model = read(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    for file in external_files(model):
        destination = target.parent / file
        destination.parent.mkdir(parents=True, exist_ok=True)
        put(source.parent / file, destination)
    constants = _constants(model.graph)
    if not dims and not model.functions and not any(value.name in constants for value in model.graph.input):
        put(source, target)
        return
    model = inlined(model)
    _fix(model, dims)
    _freeze(model, constants)
    onnx.save(model, str(target))


def _constants(graph: onnx.GraphProto) -> set[str]:
    sparse = {initializer.values.name for initializer in graph.sparse_initializer}
    return {initializer.name for initializer in graph.initializer} | sparse


def _freeze(model: onnx.ModelProto, constants: Container[str]) -> None:
    """Remove initializers from the inputs, where files before IR version 4 list them.

    ONNX Runtime folds none that a caller could replace, and lists removed ones as required inputs.
    """
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, _FREE_INITIALIZERS)


def _fix(model: onnx.ModelProto, dims: Mapping[str, int]) -> None:
    """Replace symbols by sizes everywhere."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value"):
                continue
            for name in (f"{value.name}[{axis}]", dimension.dim_param):
                if name in dims:
                    dimension.dim_value = dims[name]
                    break


def external_files(model: onnx.ModelProto) -> list[str]:
    """Relative paths of the external data of a model that was `read`."""
    locations = (
        entry.value
        for tensor in tensors(model)
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    )
    return sorted(set(locations))
