"""Run a session with bound inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Request, Target
from mlflow_ngraph.compilers.request_threads import RequestThreads
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.workloads.base import BATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[np.generic]]


class OnnxRuntimeEngine(Engine):
    """A loaded session; in async mode several threads call it."""

    def __init__(
        self, session: Any, saved: EngineSpec, batch: int, target: Target, flags: Mapping[str, FlagValue]
    ) -> None:
        super().__init__(saved.target.precision, flags)
        self._session = session
        self._saved = saved
        self._batch = batch
        self._target = target
        self._crews: list[RequestThreads] = []

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        if self._target.mode == "sync":
            single = self._request(inputs)
            return Invocation(single.call, single.outputs)
        singly = tuple(self._request(inputs) for _ in range(int(str(self.flags["requests"]))))
        crew = RequestThreads([request.call for request in singly])
        self._crews.append(crew)
        return Invocation(crew.run, singly[-1].outputs, len(singly), singly, crew.stream)

    def _request(self, inputs: Sequence[NDArray[np.generic]]) -> Request:
        """One inference, with bound inputs and outputs of its own.

        The runtime allocates outputs of unknown or wrongly inferred shape at each call, as in an unbound session: a
        bound output must have both the actual and the inferred shape.
        """
        import onnxruntime as ort

        device = self._target.accelerator
        binding = self._session.io_binding()
        arrays = dict(zip((spec.name for spec in self._saved.inputs), inputs, strict=True))
        copies = []
        for node in self._session.get_inputs():
            array = np.array(arrays[node.name], order="C")
            value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, device)
            value.update_inplace(array)
            binding.bind_ortvalue_input(node.name, value)
            copies.append(partial(value.update_inplace, array))
        renewed = []
        for node, spec in zip(self._session.get_outputs(), self._saved.outputs, strict=True):
            shape, dtype = spec.resolve(self._batch), np.dtype(spec.dtype)
            # A graph of CUDA finds its outputs where they were when it was captured.
            if self.flags.get("cuda_graph") or self._shape(node) == shape:
                binding.bind_ortvalue_output(node.name, ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, device))
            else:
                binding.bind_output(node.name, device)
                renewed.append(partial(binding.bind_output, node.name, device))
        run: Callable[[], object] = partial(self._session.run_with_iobinding, binding)
        if renewed:
            run = partial(_in_turn, [*renewed, run])
        if device == "cpu":
            return Request(run, lambda: [np.array(value.numpy()) for value in binding.get_outputs()])
        if self._target.transfers == "outside":
            return Request(_waiting(run, binding), binding.copy_outputs_to_cpu)
        return _with_transfers(run, binding, copies)

    def _shape(self, node: Any) -> tuple[int | None, ...]:
        """Inferred shape of an output, None where it depends on more than the batch size."""
        specs = {spec.name: spec.shape for spec in self._saved.inputs}
        batch = {
            size
            for given in self._session.get_inputs()
            for size, wanted in zip(given.shape, specs[given.name], strict=True)
            if wanted == BATCH
        }
        return tuple(self._batch if size in batch else size if isinstance(size, int) else None for size in node.shape)

    def close(self) -> None:
        crews, self._crews = self._crews, []
        for crew in crews:
            crew.close()
        with suppress(AttributeError):
            del self._session


def _in_turn(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _waiting(run: Callable[[], object], binding: Any) -> Callable[[], None]:
    """Call that returns when the outputs are complete on the device."""

    def call() -> None:
        run()
        binding.synchronize_outputs()

    return call


def _with_transfers(run: Callable[[], object], binding: Any, copies: Sequence[Callable[[], object]]) -> Request:
    """Call that copies the inputs to the device, and returns when the outputs are back."""
    outputs: Arrays = []

    def call() -> None:
        for copy in copies:
            copy()
        run()
        # Copying waits for what is copied.
        outputs[:] = binding.copy_outputs_to_cpu()

    return Request(call, lambda: [np.array(array) for array in outputs])
