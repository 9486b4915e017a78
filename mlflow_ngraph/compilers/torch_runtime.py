"""Configure PyTorch, cast modules, run engines of its adapters. Imports torch: import it inside methods only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from mlflow_ngraph.compilers.base import Engine, FlagValue, Invocation, Precision, Target
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads import mkl_warmup
from mlflow_ngraph.workloads.calling import arrays, flatten_outputs, tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def configure(target: Target, *, cudnn_benchmark: bool) -> dict[str, FlagValue]:
    """Set PyTorch's process-wide options, and return the effective ones.

    Raises `UnsupportedError` if an external setting reduces the precision of fp32.
    """
    if target.threads is not None:
        torch.set_num_threads(target.threads)
    mkl_warmup.warm_up()
    on_gpu = target.accelerator == "cuda"
    tf32 = target.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    # cuDNN has a switch of its own, which is on by default.
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = cudnn_benchmark and on_gpu
    if not on_gpu:
        _require_exact_fp32()
    return {
        "threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "accelerator": target.accelerator,
        **(_gpu_facts(target) if on_gpu else {}),
    }


def _require_exact_fp32() -> None:
    onednn = os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT")
    if onednn.upper() != "STRICT":
        raise UnsupportedError(f"ONEDNN_DEFAULT_FPMATH_MODE={onednn} makes oneDNN round fp32; unset it")
    for kind in ("matmul", "conv"):
        internal = getattr(getattr(torch.backends.mkldnn, kind, None), "fp32_precision", "none")
        if internal not in ("none", "ieee"):
            raise UnsupportedError(f"torch.backends.mkldnn.{kind}.fp32_precision is {internal}, not ieee")


def _gpu_facts(target: Target) -> dict[str, FlagValue]:
    major, minor = torch.cuda.get_device_capability()
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
        "transfers": target.transfers,
    }


def in_precision(module: nn.Module, precision: Precision) -> nn.Module:
    """Convert parameters and computation to a precision; inputs and outputs keep their types."""
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
    """PyTorch's inference mode, on from a thread's first engine to its last: entering it costs per call."""

    _users: ClassVar[int] = 0
    _mode: ClassVar[Any] = None

    @classmethod
    def enter(cls) -> None:
        if cls._users == 0:
            cls._mode = torch.inference_mode()
            cls._mode.__enter__()
        cls._users += 1

    @classmethod
    def leave(cls) -> None:
        cls._users -= 1
        if cls._users == 0:
            cls._mode.__exit__(None, None, None)


class TorchEngine(Engine):
    """An engine of any function from tensors to tensors.

    Load, bind and call it in one thread: inference mode belongs to a thread. ``memory_format`` is the layout of
    four-dimensional inputs.
    """

    def __init__(
        self,
        run: Callable[..., object],
        target: Target,
        flags: Mapping[str, FlagValue],
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._run: Callable[..., object] | None = run
        super().__init__(target.precision, flags)
        self._target = target
        self._memory_format = memory_format
        InferenceMode.enter()

    def bind(self, inputs: Sequence[NDArray[np.generic]]) -> Invocation:
        assert self._run is not None, "the engine is closed"
        host = [
            tensor.contiguous(memory_format=self._memory_format) if tensor.dim() == 4 else tensor
            for tensor in tensors(inputs)
        ]
        if self._target.accelerator == "cpu":
            return _on_cpu(self._run, host)
        wait = torch.cuda.synchronize
        if self._target.transfers == "inside":
            return with_transfers(self._run, [tensor.pin_memory() for tensor in host], "cuda", wait)
        return without_transfers(self._run, [tensor.to("cuda") for tensor in host], wait)

    def close(self) -> None:
        if self._run is not None:
            self._run = None
            InferenceMode.leave()


def _on_cpu(run: Callable[..., object], bound: Sequence[torch.Tensor]) -> Invocation:
    last: object = None

    def call() -> None:
        nonlocal last
        last = run(*bound)

    return Invocation(call, lambda: arrays(last))


def without_transfers(
    run: Callable[..., object], bound: Sequence[torch.Tensor], wait: Callable[[], None]
) -> Invocation:
    """Invocation whose inputs and outputs stay on the device."""
    last: object = None

    def call() -> None:
        nonlocal last
        last = run(*bound)
        wait()

    return Invocation(call, lambda: arrays(last))


def with_transfers(
    run: Callable[..., object], host: Sequence[torch.Tensor], device: str, wait: Callable[[], None]
) -> Invocation:
    """Invocation whose calls copy inputs from page-locked memory to the device, and outputs back."""
    bound = [torch.empty_like(tensor, device=device) for tensor in host]
    back: list[torch.Tensor] = []

    def call() -> None:
        for to, tensor in zip(bound, host, strict=True):
            to.copy_(tensor, non_blocking=True)
        outputs = flatten_outputs(run(*bound))
        if not back:
            # Only the first run tells how large the outputs are.
            back.extend(torch.empty_like(tensor, device="cpu", pin_memory=device != "cpu") for tensor in outputs)
        for to, tensor in zip(back, outputs, strict=True):
            to.copy_(tensor, non_blocking=True)
        wait()

    return Invocation(call, lambda: arrays(tuple(back)))
