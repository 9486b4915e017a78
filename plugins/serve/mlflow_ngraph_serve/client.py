"""Minimal client of the Open Inference Protocol; tensors travel as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import requests

from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph_serve import tensors
from mlflow_ngraph_serve.protocol import LENGTH_HEADER

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
                "datatype": tensors.datatype(array.dtype.name),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(pieces[-1])},
            }
        )
    head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    headers = {LENGTH_HEADER: str(len(head)), "Content-Type": "application/octet-stream"}
    return b"".join([head, *pieces]), headers


def decode(body: bytes, length: str | None) -> dict[str, NDArray[Any]]:
    """The outputs of an answer to `encode`."""
    end = len(body) if length is None else int(length)
    outputs, start = {}, end
    for entry in json.loads(body[:end])["outputs"]:
        dtype = np.dtype(tensors.DATATYPES[entry["datatype"]])
        stop = start + entry["parameters"]["binary_data_size"]
        array = np.frombuffer(body[start:stop], dtype.newbyteorder("<")).astype(dtype, copy=False)
        outputs[entry["name"]] = array.reshape(entry["shape"])
        start = stop
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
    where = f"{url.rstrip('/')}/v2/models/{name}/infer"
    try:
        answer = requests.post(where, data=body, headers=headers, timeout=timeout_s)
    except requests.RequestException as error:
        raise EngineError(f"{where} does not answer: {type(error).__name__}") from None
    if answer.status_code == requests.codes.ok:
        return decode(answer.content, answer.headers.get(LENGTH_HEADER))
    said = f"{where} answers {answer.status_code}: {_reason(answer)}"
    raise UsageError(said) if 400 <= answer.status_code < 500 else EngineError(said)


def _reason(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, LookupError, TypeError):
        return answer.reason
