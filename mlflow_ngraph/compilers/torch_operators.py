"""List the operators that eager PyTorch executes. Imports torch, so import it inside the methods of adapters only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from mlflow_ngraph.compilers.base import Engine
from mlflow_ngraph.compilers.explanation import Kernel
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.calling import flatten_outputs

_ALLOCATIONS = ("aten::empty", "aten::empty_strided", "aten::empty_like")


def executed_operators(engine: Engine, inputs: Sequence[TensorSpec], batch: int) -> list[Kernel]:
    """Operators of one inference, in the order of execution, without views and allocations."""
    rng = np.random.default_rng(0)
    invocation = engine.bind([spec.random(batch, rng) for spec in inputs])
    kernels: list[Kernel] = []
    with ModuleTracker() as modules, _Recorder(modules, kernels):
        invocation.call()
    return kernels


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records every operator below the composite ones."""

    def __init__(self, modules: ModuleTracker, kernels: list[Kernel]) -> None:
        super().__init__()
        self._modules = modules
        self._kernels = kernels

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        name = func._schema.name  # noqa: SLF001 - no public name for it
        if not func.is_view and name not in _ALLOCATIONS:
            self._kernels.append(self._kernel(name, result))
        return result

    def _kernel(self, name: str, result: Any) -> Kernel:
        output = next(iter(flatten_outputs(result)), None)
        return Kernel(
            # An operator outside of all layers has no name but its own.
            name=max(self._modules.parents, key=len).partition(".")[2] or name,
            operation=name,
            layout=_layout(output) if output is not None else "",
            precision=str(output.dtype).removeprefix("torch.") if output is not None else "",
            provider=output.device.type if output is not None else "",
        )


def _layout(tensor: torch.Tensor) -> str:
    """``nhwc`` or ``nchw`` for images, empty for anything else."""
    if tensor.dim() != 4:
        return ""
    last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return "nhwc" if last else "nchw"
