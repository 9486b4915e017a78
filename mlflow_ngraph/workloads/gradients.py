"""Detect a model that computes gradients itself, such as forces. Imports torch: for child processes only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_COMPUTING = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


def computes_gradients(module: nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Run the model once, and watch it: without gradients it may not get to its end."""
    watch = _Watch()
    # What a model compiles itself would be compiled twice. Who compiles has imported this, which takes long.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with suppress(Exception), eager, torch.no_grad(), watch:
        module(*inputs)
    return watch.seen


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Notices functions that compute gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or function in _COMPUTING
        return function(*args, **(kwargs or {}))
