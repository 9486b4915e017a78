"""Parameters and buffers on disk. Imports torch: for child processes only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from mlflow_ngraph.errors import NGraphError


def save(module: nn.Module, path: Path) -> None:
    """Write every parameter and buffer, also the buffers that a state dict leaves out; tied ones once."""
    from safetensors.torch import save_file

    temporary = path.with_suffix(".tmp")
    # clones, because the format refuses tensors that share memory, such as views of one buffer
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in _state(module)}, temporary)
    temporary.replace(path)


def load(module: nn.Module, path: Path) -> None:
    """Put saved parameters and buffers into a module of the same structure, in place."""
    from safetensors import safe_open

    with torch.no_grad(), safe_open(path, framework="pt") as content:
        saved = set(content.keys())
        for name, tensor in _state(module):
            if name not in saved:
                raise NGraphError(f"{path} has no {name!r}: the model is not built as it was when it was prepared")
            tensor.copy_(content.get_tensor(name))


def digest(module: nn.Module) -> str:
    """sha256 over names, types, shapes and values of every parameter and buffer."""
    result = hashlib.sha256()
    for name, tensor in sorted(_state(module)):
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
