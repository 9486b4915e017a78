"""Check the GPU that an engine needs without its runtime: most runtimes crash where there is no GPU."""

from __future__ import annotations

import os

from mlflow_ngraph.compilers.base import Precision, Target
from mlflow_ngraph.devices import probes
from mlflow_ngraph.errors import UnsupportedError

_SINCE: dict[Precision, tuple[int, int]] = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3)}
"""The first compute capability that computes in a precision."""
_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""A variable by which NVIDIA's libraries use TF32, or do not, whatever a program asks for."""


def require_gpu(compiler: str, target: Target) -> probes.Gpu:
    """The GPU that engines run on: the first in CUDA's order.

    Raises `UnsupportedError` if there is none, or it lacks the precision of ``target``, or the environment forbids it.
    """
    gpu = probes.gpu()
    if gpu is None:
        raise UnsupportedError(f"{compiler} on cuda needs an NVIDIA GPU: {probes.gpu_obstacle()}")
    require_architecture(compiler, target, architecture(gpu), f"this is {gpu.name} with {gpu.compute_capability}")
    override = os.environ.get(_OVERRIDE)
    if override is not None and (override != "0") is not (target.precision == "tf32"):
        raise UnsupportedError(f"{_OVERRIDE}={override} makes {target.precision} something else; unset it")
    return gpu


def require_architecture(compiler: str, target: Target, found: tuple[int, int], who: str) -> None:
    """Check that a GPU of compute capability ``found`` supports the precision of a target.

    Raises `UnsupportedError` if it does not.
    """
    since = _SINCE.get(target.precision, (0, 0))
    if found < since:
        needed = ".".join(map(str, since))
        raise UnsupportedError(
            f"{compiler} runs {target.precision} on GPUs of compute capability {needed} or later: {who}"
        )


def architecture(gpu: probes.Gpu) -> tuple[int, int]:
    """Compute capability as a tuple; (0, 0) where the driver does not report it."""
    major, _, minor = gpu.compute_capability.partition(".")
    return (int(major), int(minor or 0)) if major.isdigit() else (0, 0)
