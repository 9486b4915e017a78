"""Run a compiled model with bound inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Mode, Precision, Request
from mlflow_ngraph.compilers.openvino.library import library
from mlflow_ngraph.compilers.request_queue import RequestQueue
from mlflow_ngraph.errors import CompileError
from mlflow_ngraph.workloads.base import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OpenVINOEngine(Engine):
    """A compiled model; in async mode with as many requests as the runtime wants."""

    def __init__(
        self,
        compiled: Any,
        precision: Precision,
        flags: Mapping[str, FlagValue],
        inputs: Sequence[TensorSpec],
        mode: Mode,
    ) -> None:
        super().__init__(precision, flags)
        self._compiled = compiled
        self._inputs = inputs
        self._mode = mode

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        if self._mode == "sync":
            single = self._single(filled(self._compiled, self._inputs, inputs))
            return Invocation(single.call, single.outputs)
        count = int(str(self.flags["requests"]))
        requests = [filled(self._compiled, self._inputs, inputs) for _ in range(count)]
        relay = RequestQueue([request.start_async for request in requests], [request.wait for request in requests])
        singly = tuple(self._single(request) for request in requests)
        return Invocation(relay.run, singly[-1].outputs, count, singly, relay.stream)

    def _single(self, request: Any) -> Request:
        # Shared outputs are views; the default would copy them at every call.
        infer: Callable[[], object] = partial(request.infer, share_outputs=True)
        return Request(infer, partial(self._outputs, request))

    def _outputs(self, request: Any) -> list[NDArray[np.generic]]:
        return [np.array(request.get_output_tensor(index).data) for index in range(len(self._compiled.outputs))]

    def close(self) -> None:
        self._compiled = None


def filled(compiled: Any, specs: Sequence[TensorSpec], arrays: Sequence[NDArray[np.generic]]) -> Any:
    """Create a request with inputs in tensors of the runtime's own allocator."""
    ov, request = library(), compiled.create_infer_request()
    for index, place in enumerate(places(compiled.inputs, specs)):
        request.set_input_tensor(index, ov.Tensor(np.array(arrays[place], order="C")))
    return request


def places(ports: Sequence[Any], specs: Sequence[TensorSpec]) -> list[int]:
    """Index of the workload's input for each input of a compiled model.

    The runtime drops unused inputs. An input that is directly an output has the output's name; the order stays.

    Raises `CompileError` if it is ambiguous.
    """
    known = {spec.name: index for index, spec in enumerate(specs)}
    indices = [next((known[name] for name in port.get_names() if name in known), None) for port in ports]
    missing = [index for index in range(len(specs)) if index not in indices]
    if None in indices and len(missing) != indices.count(None):
        names = ", ".join(repr(specs[index].name) for index in missing)
        raise CompileError(f"openvino keeps {indices.count(None)} of the inputs {names}, and not under its name")
    renamed = iter(missing)
    return [next(renamed) if place is None else place for place in indices]
