"""MLflow's scoring protocol at ``/invocations``: tensors as nested JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.text import shortened
from mlflow_ngraph_serve import large_json, tensors
from mlflow_ngraph_serve.refusal import malformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph_serve.protocol import InferenceRequest, Interface

_FORMS = ("inputs", "instances")


def read(interface: Interface, body: bytes | bytearray) -> InferenceRequest:
    """Read a request: ``inputs`` has a tensor, or tensors by name; ``instances`` the same sample by sample.

    Raises
    ------
    Refusal
        The request is invalid for this engine; says why.
    """
    content = interface.parsed(body)
    given = [form for form in _FORMS if form in content]
    if len(given) != 1:
        raise malformed(f"send either {' or '.join(_FORMS)}: the engine takes tensors, and no tables")
    values = content[given[0]]
    by_name = values if given == ["inputs"] else _columns(values)
    if not isinstance(by_name, dict):
        if len(interface.inputs) > 1:
            raise malformed(f"inputs must be named: the engine takes {', '.join(interface.inputs)}")
        by_name = dict.fromkeys(interface.inputs, by_name)
    unknown = sorted(set(by_name) - set(interface.inputs))
    if unknown:
        raise malformed(f"no input is called {shortened(unknown[0])}: the engine takes {', '.join(interface.inputs)}")
    arrays: dict[str, NDArray[Any]] = {}
    for name, data in by_name.items():
        spec = interface.inputs[name]
        arrays[name] = tensors.numbers(data, spec)
        tensors.check_shape(list(arrays[name].shape), spec)
    return interface.request(None, arrays, tuple((name, False) for name in interface.outputs))


def write(question: InferenceRequest, found: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers: ``predictions`` by the names of the outputs."""
    nested = {
        name: np.array(tensors.to_json(found[name]), object).reshape(found[name].shape).tolist()
        for name, _ in question.outputs
    }
    numbers = sum(found[name].size for name in nested)
    return large_json.dumps({"predictions": nested}, numbers).encode(), {"Content-Type": "application/json"}


def _columns(rows: Any) -> Any:
    """Tensors of samples: by name where they have names."""
    if not isinstance(rows, list) or not rows:
        raise malformed("instances must be a list of samples")
    if not all(isinstance(row, dict) for row in rows):
        return rows
    if any(row.keys() != rows[0].keys() for row in rows):
        raise malformed("instances must all have the same inputs")
    return {name: [row[name] for row in rows] for name in rows[0]}
