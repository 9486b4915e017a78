"""Call PyTorch models in one way: tensors in the order of the inputs, a flat list of tensors out.

Imports torch: for child processes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from mlflow_ngraph.workloads.base import Wrapper


def tensors(arrays: Sequence[NDArray[Any]], device: str = "cpu") -> list[torch.Tensor]:
    """Copy arrays to tensors."""
    return [torch.tensor(array, device=device) for array in arrays]


def flatten_outputs(outputs: object) -> list[torch.Tensor]:
    """Tensors in nested lists, tuples, mappings, dataclasses and other objects with members, in a fixed order.

    Other values, such as a number or None, are left out.
    """
    return [tensor for leaf in tree_leaves(outputs) for tensor in _within(leaf)]


def _within(leaf: object) -> list[torch.Tensor]:
    """Tensors in an object whose structure torch does not know, such as a decoder's cache."""
    if isinstance(leaf, torch.Tensor):
        return [leaf]
    if is_dataclass(leaf):
        return flatten_outputs([getattr(leaf, entry.name) for entry in fields(leaf)])
    return flatten_outputs(list(leaf)) if isinstance(leaf, Iterable) and not isinstance(leaf, (str, bytes)) else []


def arrays(outputs: object) -> list[NDArray[Any]]:
    """Copies of flattened outputs: some models give a tensor of their own, which the next call writes to."""
    return [_array(tensor) for tensor in flatten_outputs(outputs)]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return np.array(tensor.detach().cpu().resolve_conj().resolve_neg().numpy(), order="C")


def is_flat(outputs: object) -> bool:
    """True if outputs are a tensor or a tuple of tensors, which every compiler supports."""
    members = outputs if isinstance(outputs, tuple) else (outputs,)
    return type(members) is tuple and all(isinstance(member, torch.Tensor) for member in members)


class KeywordCall(nn.Module):  # type: ignore[misc]
    """Passes positional arguments by name."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def called_by_name(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Model that takes inputs of these names by position: itself where they are its first parameters, else wrapped.

    TorchScript compiles no code of a wrapper for any number of inputs.
    """
    try:
        first = list(signature(model.forward).parameters.values())[: len(names)]
    except ValueError:  # a traced module says nothing of its parameters
        first = []
    by_position = [parameter.name for parameter in first if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return model if by_position == list(names) else KeywordCall(model, names)


class FlatOutputs(nn.Module):  # type: ignore[misc]
    """Flattens a model's outputs to a tensor, or a tuple of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        flat = flatten_outputs(self.model(*inputs))
        return flat[0] if len(flat) == 1 else tuple(flat)


class CopiedInputs(nn.Module):  # type: ignore[misc]
    """Copies the inputs of a model that writes to them, so that repeated calls see the originals."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(*(tensor.clone() for tensor in inputs))


class WithGradients(nn.Module):  # type: ignore[misc]
    """Lets a model compute gradients of its own, such as forces of an energy, in whatever mode it is called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            # Copies, because tensors of inference mode have no gradients outside it either.
            return self.model(*(tensor.clone() for tensor in inputs))


_WRAPPERS: dict[Wrapper, type[nn.Module]] = {
    "flat_outputs": FlatOutputs,
    "copied_inputs": CopiedInputs,
    "gradients": WithGradients,
}


def wrap(model: nn.Module, wrappers: Sequence[Wrapper]) -> nn.Module:
    """Wrap a model, from the inside out; each wrapper has the mode of its content."""
    for wrapper in wrappers:
        # A new module begins in training mode, and whoever restores the mode of the outermost hands it down to all.
        model = _WRAPPERS[wrapper](model).train(model.training)
    return model


class Graph(nn.Module):  # type: ignore[misc]
    """A model that is one graph of operations, not a tree of layers."""


class ExportedGraph(Graph):
    """An exported program, whose modes torch refuses to switch; they stay as exported."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*args, **kwargs)

    def train(self, mode: bool = True) -> ExportedGraph:
        return self


class StructuredCall(nn.Module):  # type: ignore[misc]
    """Arranges positional arguments as an exported program expects them: nested, or by keyword."""

    def __init__(self, model: nn.Module, structure: TreeSpec) -> None:
        super().__init__()
        self.model = model
        self.structure = structure

    def forward(self, *inputs: torch.Tensor) -> Any:
        args, kwargs = tree_unflatten(list(inputs), self.structure)
        return self.model(*args, **kwargs)


def called_flat(program: torch.export.ExportedProgram) -> nn.Module:
    """Wrap an exported program to take its inputs by position, in the order of its signature."""
    return StructuredCall(ExportedGraph(program.module()), program.call_spec.in_spec).eval()
