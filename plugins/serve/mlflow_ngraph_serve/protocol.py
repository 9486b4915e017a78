"""Requests and answers of the Open Inference Protocol, with its extension for binary tensors.

A body is JSON, or JSON of the length that the header ``Inference-Header-Content-Length`` says, followed by the bytes of
the tensors that are marked with ``binary_data_size``, in the order of the JSON.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.engines.arrays import check_integers
from mlflow_ngraph.engines.arrays import samples as batch_size
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.text import shortened
from mlflow_ngraph_serve import large_json, tensors
from mlflow_ngraph_serve.refusal import Refusal, malformed

if TYPE_CHECKING:
    from typing import NoReturn

    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.base import TensorSpec

LENGTH_HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)
_ELSEWHERE = ("shared_memory_", "classification", "sequence_")
"""Beginnings of parameters of other extensions that would change the answer. Others may be ignored, as the protocol says."""


@dataclass(frozen=True)
class InferenceRequest:
    """A valid request."""

    id: str | None
    arrays: list[NDArray[Any]]
    """Arrays in the order of the engine's inputs."""
    samples: int | None
    """The batch size; None where no input has a batch axis."""
    outputs: tuple[tuple[str, bool], ...]
    """Names of the wanted outputs, and whether they are wanted as bytes."""


class Interface:
    """Inputs and outputs of an engine in the terms of the protocol.

    Parameters
    ----------
    name, version : str
        Under which clients know the engine.
    widest_integer : str | None
        That of the engine's `Compiler`.
    """

    def __init__(
        self,
        name: str,
        version: str,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        widest_integer: str | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self._widest = widest_integer
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}

    def metadata(self, platform: str) -> dict[str, Any]:
        """Answer to ``/v2/models/NAME``."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": platform,
            "inputs": [_described(spec) for spec in self.inputs.values()],
            "outputs": [_described(spec) for spec in self.outputs.values()],
        }

    def read(self, body: bytes | bytearray, length: str | None) -> InferenceRequest:
        """Read a request.

        Parameters
        ----------
        length : str | None
            The value of `LENGTH_HEADER`, where the request has it.

        Raises
        ------
        Refusal
            The request is invalid for this engine; says why.
        """
        end = _json_length(length, len(body))
        content = self.parsed(body[:end])
        given = _objects(content, "inputs")
        arrays = self._arrays(given, memoryview(body)[end:])
        identity = content.get("id")
        if identity is not None and not isinstance(identity, str):
            raise malformed("id must be a string")
        return self.request(identity, arrays, self._wanted(content))

    @staticmethod
    def parsed(text: bytes | bytearray) -> dict[str, Any]:
        """A body of JSON.

        Raises
        ------
        Refusal
            It is none.
        """
        return _json_object(text)

    def request(
        self, identity: str | None, arrays: Mapping[str, NDArray[Any]], outputs: tuple[tuple[str, bool], ...]
    ) -> InferenceRequest:
        """A request for some outputs, from arrays that fit the inputs one by one.

        Raises
        ------
        Refusal
            One is missing, they are not of one batch size, or an integer is out of its range.
        """
        missing = [name for name in self.inputs if name not in arrays]
        if missing:
            raise malformed(f"input {missing[0]!r} is missing: the engine takes {', '.join(self.inputs)}")
        ordered = [arrays[name] for name in self.inputs]
        try:
            samples = batch_size(ordered, list(self.inputs.values()))
        except UsageError as error:
            raise malformed(str(error)) from None
        try:
            check_integers(ordered, list(self.inputs.values()), self._widest)
        except UsageError as error:
            raise Refusal(422, "values", str(error)) from None
        return InferenceRequest(identity, ordered, samples, outputs)

    def zeros(self) -> tuple[str, int]:
        """The JSON of a request for one sample of zeros, as bytes of any size, and the number of bytes that follow it."""
        described, size = [], 0
        for spec in self.inputs.values():
            shape = list(spec.resolve(1))
            own = math.prod(shape) * np.dtype(spec.dtype).itemsize
            described.append({**_described(spec), "shape": shape, "parameters": {"binary_data_size": own}})
            size += own
        return json.dumps({"inputs": described}, separators=(",", ":")), size

    def example(self, address: str) -> str:
        """A command that asks for one sample of zeros."""
        head, size = self.zeros()
        return (
            f"{{ printf %s {shlex.quote(head)}; head -c {size} /dev/zero; }} | curl -s --data-binary @- "
            f"-H '{LENGTH_HEADER}: {len(head.encode())}' {shlex.quote(address)}"
        )

    def write(self, question: InferenceRequest, found: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, str]]:
        """Body and headers of an answer."""
        described, pieces, numbers = [], [], 0
        for name, as_bytes in question.outputs:
            array = found[name]
            entry: dict[str, Any] = {
                "name": name,
                "datatype": tensors.datatype(array.dtype),
                "shape": list(array.shape),
            }
            if as_bytes:
                pieces.append(tensors.to_bytes(array))
                entry["parameters"] = {"binary_data_size": len(pieces[-1])}
            else:
                entry["data"] = tensors.to_json(array)
                numbers += array.size
            described.append(entry)
        said: dict[str, Any] = {"model_name": self.name, "model_version": self.version, "outputs": described}
        if question.id is not None:
            said["id"] = question.id
        head = large_json.dumps(said, numbers).encode()
        if not pieces:
            return head, {"Content-Type": "application/json"}
        return b"".join([head, *pieces]), {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}

    def _arrays(self, given: Sequence[Mapping[str, Any]], binary: memoryview) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for entry in given:
            spec = self._spec(entry, arrays)
            sizes = tensors.check_shape(entry.get("shape"), spec)
            size = _parameters(entry, f"input {spec.name!r}").get("binary_data_size")
            if ("data" in entry) == (size is not None):
                raise malformed(f"input {spec.name!r} needs either data or the parameter binary_data_size")
            if size is None:
                arrays[spec.name] = tensors.from_json(entry["data"], sizes, spec)
                continue
            if type(size) is not int or not 0 <= size <= len(binary) - start:
                raise malformed(f"input {spec.name!r}: binary_data_size is more than what follows the JSON")
            arrays[spec.name] = tensors.from_bytes(binary[start : start + size], sizes, spec)
            start += size
        if start != len(binary):
            raise malformed(f"{len(binary) - start} bytes follow the JSON that belong to no input")
        return arrays

    def _spec(self, entry: Mapping[str, Any], arrays: Mapping[str, object]) -> TensorSpec:
        name = entry.get("name")
        if not isinstance(name, str) or name not in self.inputs:
            raise malformed(f"no input is called {shortened(name)}: the engine takes {', '.join(self.inputs)}")
        if name in arrays:
            raise malformed(f"input {name!r} is given twice")
        spec = self.inputs[name]
        wanted = tensors.datatype(spec.dtype)
        if entry.get("datatype") != wanted:
            raise malformed(
                f"input {name!r} has datatype {shortened(entry.get('datatype'))}, the engine takes {wanted}"
            )
        return spec

    def _wanted(self, content: Mapping[str, Any]) -> tuple[tuple[str, bool], ...]:
        default = _truth(_parameters(content, "the request"), "binary_data_output", otherwise=False)
        if "outputs" not in content:
            return tuple((name, default) for name in self.outputs)
        wanted: dict[str, bool] = {}
        for entry in _objects(content, "outputs"):
            name = entry.get("name")
            if not isinstance(name, str) or name not in self.outputs:
                known = ", ".join(self.outputs)
                raise malformed(f"no output is called {shortened(name)}: the engine has {known}")
            if name in wanted:
                raise malformed(f"output {name!r} is asked for twice")
            wanted[name] = _truth(_parameters(entry, f"output {name!r}"), "binary_data", otherwise=default)
        return tuple(wanted.items())


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": tensors.datatype(spec.dtype), "shape": tensors.shape(spec)}


def _json_length(length: str | None, size: int) -> int:
    """Position of the end of the JSON in a body of ``size`` bytes."""
    if length is None:
        return size
    # Python's own conversion would take a sign, spaces, underscores and the digits of other scripts.
    if not (length.isascii() and length.isdigit() and len(length) <= len(str(size))) or int(length) > size:
        raise malformed(f"{LENGTH_HEADER} must be a number of bytes, and at most those of the body")
    return int(length)


def _json_object(text: bytes | bytearray) -> dict[str, Any]:
    try:
        content = large_json.loads(text.decode("utf-8"), _no_number)
    except (ValueError, RecursionError):
        raise malformed("the body is not JSON") from None
    if not isinstance(content, dict):
        raise malformed("the body must be a JSON object")
    return content


def _no_number(text: str) -> NoReturn:
    raise malformed(f"{text} is not JSON: send such numbers as binary data")


def _objects(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    objects = content.get(name)
    if not isinstance(objects, list) or not objects or not all(isinstance(entry, dict) for entry in objects):
        raise malformed(f"{name} must be a list of objects")
    return objects


def _parameters(content: Mapping[str, Any], what: str) -> dict[str, Any]:
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise malformed(f"parameters of {what} must be an object")
    if other := next((name for name in parameters if name.startswith(_ELSEWHERE)), ""):
        raise malformed(f"the parameter {shortened(other)} of {what} is not served here")
    return parameters


def _truth(parameters: Mapping[str, Any], name: str, *, otherwise: bool) -> bool:
    truth = parameters.get(name, otherwise)
    if not isinstance(truth, bool):
        raise malformed(f"the parameter {name} must be true or false")
    return truth
