"""How every part of the package calls a PyTorch model: tensors in the order of its inputs, a flat list of tensors out.

Imports torch: for child processes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from mlflow_ngraph.workloads.base import Wrapper


def tensors(arrays: Sequence[NDArray[Any]], device: str = "cpu") -> list[torch.Tensor]:
    """The arrays as tensors that share no memory with them."""
    return [torch.tensor(array, device=device) for array in arrays]


def flatten_outputs(outputs: object) -> list[torch.Tensor]:
    """The tensors of nested lists, tuples, mappings, dataclasses and whatever else has members, in one order everywhere.

    What has none, such as a number or None, is left out.
    """
    return [tensor for leaf in tree_leaves(outputs) for tensor in _within(leaf)]


def _within(leaf: object) -> list[torch.Tensor]:
    """The tensors of what torch does not know the structure of, such as a decoder's cache."""
    if isinstance(leaf, torch.Tensor):
        return [leaf]
    if is_dataclass(leaf):
        return flatten_outputs([getattr(leaf, entry.name) for entry in fields(leaf)])
    return flatten_outputs(list(leaf)) if isinstance(leaf, Iterable) and not isinstance(leaf, (str, bytes)) else []


def arrays(outputs: object) -> list[NDArray[Any]]:
    """The flattened outputs as contiguous NumPy arrays."""
    return [_array(tensor) for tensor in flatten_outputs(outputs)]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu().resolve_conj().resolve_neg().numpy(), order="C")


def is_flat(outputs: object) -> bool:
    """Whether outputs are a tensor or a tuple of tensors, which every compiler understands."""
    members = outputs if isinstance(outputs, tuple) else (outputs,)
    return type(members) is tuple and all(isinstance(member, torch.Tensor) for member in members)


class KeywordCall(nn.Module):  # type: ignore[misc]
    """Passes its positional arguments on by name."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the model."""
        return self.model(**dict(zip(self.names, inputs, strict=True)))


class FlatOutputs(nn.Module):  # type: ignore[misc]
    """Turns the outputs of a model into a tensor, or a tuple of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Call the model."""
        flat = flatten_outputs(self.model(*inputs))
        return flat[0] if len(flat) == 1 else tuple(flat)


class CopiedInputs(nn.Module):  # type: ignore[misc]
    """Lets a model that writes to its inputs write to copies: called again, it would see what it has left there."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the model."""
        return self.model(*(tensor.clone() for tensor in inputs))


_WRAPPERS: dict[Wrapper, type[nn.Module]] = {"flat_outputs": FlatOutputs, "copied_inputs": CopiedInputs}


def wrap(model: nn.Module, wrappers: Sequence[Wrapper]) -> nn.Module:
    """Put wrappers around a model, from the inside out; each has the mode of what it wraps."""
    for wrapper in wrappers:
        # A new module begins in training mode, and whoever restores the mode of the outermost hands it down to all.
        model = _WRAPPERS[wrapper](model).train(model.training)
    return model


class Graph(nn.Module):  # type: ignore[misc]
    """A model that is one graph of operations, not a tree of layers."""


class ExportedGraph(Graph):
    """An exported program. It has no modes, and torch refuses to switch them: this leaves it as it was exported."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program."""
        return self.program(*args, **kwargs)

    def train(self, mode: bool = True) -> ExportedGraph:
        """Do nothing."""
        return self


class StructuredCall(nn.Module):  # type: ignore[misc]
    """Arranges its positional arguments as an exported program took them: nested, or by keyword."""

    def __init__(self, model: nn.Module, structure: TreeSpec) -> None:
        super().__init__()
        self.model = model
        self.structure = structure

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the program."""
        args, kwargs = tree_unflatten(list(inputs), self.structure)
        return self.model(*args, **kwargs)


def called_flat(program: torch.export.ExportedProgram) -> nn.Module:
    """An exported program that takes its inputs by position, in the order of its signature."""
    return StructuredCall(ExportedGraph(program.module()), program.call_spec.in_spec).eval()
