"""A compiled model and its bound inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Mode, Precision, Request
from mlflow_ngraph.compilers.openvino.library import library
from mlflow_ngraph.compilers.relay import Relay

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OpenVINOEngine(Engine):
    """A compiled model; in async mode with as many requests as the runtime wants."""

    def __init__(
        self,
        compiled: Any,
        precision: Precision,
        flags: Mapping[str, FlagValue],
        mode: Mode,
    ) -> None:
        super().__init__(precision, flags)
        self._compiled = compiled
        self._mode = mode

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        if self._mode == "sync":
            single = self._single(filled(self._compiled, inputs))
            return Invocation(single.call, single.outputs)
        count = int(str(self.flags["requests"]))
        requests = [filled(self._compiled, inputs) for _ in range(count)]
        relay = Relay([request.start_async for request in requests], [request.wait for request in requests])
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


def filled(compiled: Any, arrays: Sequence[NDArray[np.generic]]) -> Any:
    """A request with the inputs in tensors of the runtime's own allocator.

    They go by their order, which is that of the model's file: where nothing is left between an input and an output, the
    input has the output's name.
    """
    ov, request = library(), compiled.create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, ov.Tensor(np.array(array, order="C")))
    return request
