"""Run a compiled model in TVM's virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TVMEngine(Engine):
    """A virtual machine with the model's kernels.

    ``synchronise`` makes calls wait for a device that queues kernels; ``transfers_inside`` makes them copy to and from
    the device.
    """

    def __init__(
        self,
        machine: Any,
        device: Any,
        precision: Precision,
        flags: Mapping[str, FlagValue],
        *,
        synchronise: bool,
        transfers_inside: bool,
    ) -> None:
        super().__init__(precision, flags)
        self._machine = machine
        self._device = device
        self._synchronise = synchronise
        self._transfers_inside = transfers_inside and synchronise

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        import tvm

        # A copy in TVM's own memory, because its kernels count on 64-byte alignment.
        arrays = [np.asarray(array, order="C") for array in inputs]
        tensors = [tvm.runtime.tensor(array, self._device) for array in arrays]
        # Not a closure saved in the virtual machine: that would hold the machine, and never be freed.
        run = partial(self._machine["main"], *tensors)
        if self._transfers_inside:
            return self._with_transfers(run, [tvm.runtime.tensor(array) for array in arrays], tensors)
        last: Any = None
        wait = self._device.sync if self._synchronise else None

        def call() -> None:
            nonlocal last
            last = run()
            if wait is not None:
                wait()

        def outputs() -> list[NDArray[np.generic]]:
            return [np.array(tensor.numpy()) for tensor in _listed(last)]

        return Invocation(call, outputs)

    def _with_transfers(self, run: Callable[[], Any], sources: Sequence[Any], tensors: Sequence[Any]) -> Invocation:
        """Invocation whose calls copy the inputs to the device and the outputs back."""
        import tvm

        results = [tvm.runtime.empty(tensor.shape, tensor.dtype) for tensor in _listed(run())]

        def call() -> None:
            for source, tensor in zip(sources, tensors, strict=True):
                source.copyto(tensor)
            for tensor, result in zip(_listed(run()), results, strict=True):
                tensor.copyto(result)
            self._device.sync()

        return Invocation(call, lambda: [np.array(result.numpy()) for result in results])

    def close(self) -> None:
        self._machine = None


def _listed(result: Any) -> list[Any]:
    """Outputs as a list, also of a model with one output."""
    return [result] if hasattr(result, "numpy") else list(result)
