"""Common base of the adapters torch-compile, torchscript and identity (eager). Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from mlflow_ngraph.compilers.accelerator import require_gpu
from mlflow_ngraph.compilers.base import Availability, Compiler, F, Flags, FlagValue, Precision, Target
from mlflow_ngraph.compilers.host import package
from mlflow_ngraph.errors import CompileError, UnsupportedError

_ON_CPU: tuple[Precision, ...] = ("fp32", "bf16")


class TorchFlags(Flags):
    """Options of all PyTorch adapters."""

    cudnn_benchmark: bool = False
    """On a GPU, let cuDNN time its convolutions at the first run of each shape, and use the fastest."""


class TorchAdapter(Compiler[F]):
    """A compiler whose engines PyTorch runs, on the CPU or on an NVIDIA GPU."""

    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16", "fp16")
    accelerators: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    runtime_modules: ClassVar[tuple[str, ...]] = ("torch",)

    @classmethod
    def availability(cls) -> Availability:
        return package("torch", "torch", "pip install 'mlflow-ngraph[torch]'")

    def requires(self, target: Target) -> dict[str, str]:
        requirements = {"torch": package("torch", "torch", "").version or ""}
        return {**requirements, "cuda": built_for()} if target.accelerator == "cuda" else requirements

    def check(self, target: Target) -> None:
        """Refuse targets that PyTorch does not support on the accelerator.

        Raises `UnsupportedError` if precision or mode are unknown, or need the other accelerator, or there is no GPU.
        """
        super().check(target)
        if target.accelerator == "cuda":
            require_gpu(self.name, target)
            if not built_for():
                raise UnsupportedError(
                    f"{self.name} on cuda needs a PyTorch built for CUDA: torch {package('torch', 'torch', '').version} "
                    "is not; install the build for your driver's CUDA version"
                )
        elif target.precision not in _ON_CPU:
            known = ", ".join(_ON_CPU)
            raise UnsupportedError(f"{self.name} runs {target.precision} on cuda only; on the CPU it runs {known}")


def built_for() -> str:
    """CUDA version of the installed PyTorch, such as ``13.0``; empty for a build without CUDA."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            text = (Path(folder) / "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return match[1] if match else ""
    return ""


def same_accelerator(compiler: str, facts: Mapping[str, FlagValue], target: Target) -> None:
    """Raise `CompileError` for an engine whose code is for another accelerator."""
    compiled = facts["accelerator"]
    if compiled != target.accelerator:
        raise CompileError(f"this engine of {compiler} was compiled for {compiled}, not for {target.accelerator}")
