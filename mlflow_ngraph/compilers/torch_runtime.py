"""What the three PyTorch adapters share. Imports torch: only for use inside their methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Precision, Target
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.calling import arrays, tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def configure(target: Target) -> dict[str, FlagValue]:
    """Set what PyTorch keeps for the whole process, and return what took effect.

    Raises
    ------
    UnsupportedError: something outside makes fp32 less than fp32.
    """
    if target.threads is not None:
        torch.set_num_threads(target.threads)
    torch.set_float32_matmul_precision("highest")
    onednn = os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT")
    if onednn.upper() != "STRICT":
        raise UnsupportedError(f"ONEDNN_DEFAULT_FPMATH_MODE={onednn} makes oneDNN round fp32; unset it")
    for kind in ("matmul", "conv"):
        internal = getattr(getattr(torch.backends.mkldnn, kind, None), "fp32_precision", "none")
        if internal not in ("none", "ieee"):
            raise UnsupportedError(f"torch.backends.mkldnn.{kind}.fp32_precision is {internal}, not ieee")
    return {
        "threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def in_precision(module: nn.Module, precision: Precision) -> nn.Module:
    """The module with parameters and computation in a precision, and its own types at the border."""
    dtype = DTYPES[precision]
    if dtype is torch.float32:
        return module
    return _Bordered(module.to(dtype), dtype)


class _Bordered(nn.Module):  # type: ignore[misc]
    """Casts floating-point inputs to the inner type, and floating-point outputs back."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = inner
        self.dtype = dtype

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        outputs = self.inner(*(_cast(tensor, self.dtype) for tensor in inputs))
        if isinstance(outputs, torch.Tensor):
            return _cast(outputs, torch.float32)
        return tuple(_cast(tensor, torch.float32) for tensor in outputs)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class InferenceMode:
    """PyTorch's inference mode, on from the first engine of this thread to the last: entering it costs per call."""

    _users: ClassVar[int] = 0
    _mode: ClassVar[Any] = None

    @classmethod
    def enter(cls) -> None:
        """Switch it on, unless it is on."""
        if cls._users == 0:
            cls._mode = torch.inference_mode()
            cls._mode.__enter__()
        cls._users += 1

    @classmethod
    def leave(cls) -> None:
        """Switch it off if nobody else needs it."""
        cls._users -= 1
        if cls._users == 0:
            cls._mode.__exit__(None, None, None)


class TorchEngine(Engine):
    """Anything that maps tensors to tensors.

    Load, bind and call it in one thread: inference mode belongs to a thread.

    Parameters
    ----------
    run: maps the input tensors to a tensor, or a tuple or list of tensors.
    memory_format: what four-dimensional inputs are laid out in.
    """

    def __init__(
        self,
        run: Callable[..., object],
        precision: Precision,
        flags: Mapping[str, FlagValue],
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._run: Callable[..., object] | None = run
        super().__init__(precision, flags)
        self._memory_format = memory_format
        InferenceMode.enter()

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        run = self._run
        assert run is not None, "the engine is closed"
        bound = [
            tensor.contiguous(memory_format=self._memory_format) if tensor.dim() == 4 else tensor
            for tensor in tensors(inputs)
        ]
        last: object = None

        def call() -> None:
            nonlocal last
            last = run(*bound)

        return Invocation(call, lambda: [array.copy() for array in arrays(last)])

    def close(self) -> None:
        if self._run is not None:
            self._run = None
            InferenceMode.leave()
