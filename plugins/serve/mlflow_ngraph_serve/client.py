"""Minimal client of the Open Inference Protocol; tensors travel as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import requests

from mlflow_ngraph.addresses import shown
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.text import brief
from mlflow_ngraph_serve import tensors
from mlflow_ngraph_serve.protocol import LENGTH_HEADER
from mlflow_ngraph_serve.refusal import LONGEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMEOUT_S = 60.0


def encode(inputs: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, str]]:
    """The body of a request for all outputs, and its headers."""
    described, pieces = [], []
    for name, array in inputs.items():
        pieces.append(tensors.to_bytes(array))
        described.append(
            {
                "name": name,
                "datatype": tensors.datatype(array.dtype),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(pieces[-1])},
            }
        )
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    headers = {LENGTH_HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
    return b"".join([head, *pieces]), headers


def decode(body: bytes, length: str | None) -> dict[str, NDArray[Any]]:
    """The outputs of an answer to `encode`: as bytes, or as JSON where a server lacks the extension.

    Raises
    ------
    EngineError
        This is no answer of the protocol.
    """
    outputs: dict[str, NDArray[Any]] = {}
    try:
        start = end = len(body) if length is None else int(length)
        for entry in json.loads(body[:end])["outputs"]:
            dtype = np.dtype(tensors.DATATYPES[entry["datatype"]])
            if "data" in entry:
                array = np.array(entry["data"], dtype)
            else:
                stop = start + entry["parameters"]["binary_data_size"]
                array = np.frombuffer(body[start:stop], dtype.newbyteorder("<")).astype(dtype, copy=False)
                start = stop
            outputs[entry["name"]] = array.reshape(entry["shape"])
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise EngineError(f"this is no answer of the Open Inference Protocol: {brief(repr(error), LONGEST)}") from None
    return outputs


def infer(url: str, name: str, inputs: Mapping[str, NDArray[Any]], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Ask a server.

    Parameters
    ----------
    url : str
        Address of the server, such as ``http://localhost:8080``.

    Raises
    ------
    UsageError
        The server refuses the request.
    EngineError
        It cannot be reached, or fails.
    """
    body, headers = encode(inputs)
    where = f"{_model(url, name)}/infer"
    answer = _asked("POST", where, timeout_s, data=body, headers=headers)
    try:
        return decode(answer.content, answer.headers.get(LENGTH_HEADER))
    except EngineError as error:
        raise EngineError(f"{shown(where)}: {error}") from None


def largest_batch(url: str, name: str, timeout_s: float = TIMEOUT_S) -> int | None:
    """Samples that a request to a server may have at most; None where it does not say.

    Raises
    ------
    As `infer`.
    """
    try:
        said = _asked("GET", _model(url, name), timeout_s).json()["max_batch_size"]
    except (ValueError, LookupError, TypeError):
        return None
    return said if type(said) is int and said > 0 else None


def _model(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/v2/models/{name}"


def _asked(method: str, where: str, timeout_s: float, **content: Any) -> requests.Response:
    try:
        answer = requests.request(method, where, timeout=timeout_s, **content)
    except requests.RequestException as error:
        raise EngineError(f"{shown(where)} does not answer: {type(error).__name__}") from None
    if answer.status_code == requests.codes.ok:
        return answer
    said = f"{shown(where)} answers {answer.status_code}: {_reason(answer)}"
    raise UsageError(said) if 400 <= answer.status_code < 500 else EngineError(said)


def _reason(answer: requests.Response) -> str:
    try:
        return brief(str(answer.json()["error"]), LONGEST)
    except (ValueError, LookupError, TypeError):
        return answer.reason
