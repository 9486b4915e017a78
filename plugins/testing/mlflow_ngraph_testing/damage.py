"""Damage to weights and graphs for the compiler `mlflow_ngraph_testing.broken`. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.calling import flatten_outputs, tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FACTOR = 1.01
_ACTIVATIONS = ("relu", "gelu", "silu", "hardswish", "elu", "leaky_relu", "mish", "softplus", "hardtanh")
"""Operators whose inputs decide the size of their outputs."""
_SUMS = ("aten::add", "aten::add_")


def weights(module: nn.Module, damage: str, place: int) -> nn.Module:
    """Change weights in place: one number (``number``), one of them (``weight``), two channels (``swapped``) or all (``rounded``)."""
    if damage == "rounded":
        for parameter in module.parameters():
            parameter.data = parameter.data.bfloat16().to(parameter.dtype)
    if damage in ("number", "weight", "swapped"):
        rng = np.random.default_rng(place)
        layers = [weight for name, weight in module.named_parameters() if weight.ndim > 1 and name.endswith("weight")]
        layers = [weight for weight in layers if len(weight) > 1]
        if not layers:
            raise UnsupportedError("the model has no weight of several channels to damage")
        layer = layers[rng.integers(len(layers))].data
        if damage == "weight":
            layer *= _FACTOR
        elif damage == "number":
            layer.view(-1)[int(rng.integers(layer.numel()))] *= _FACTOR
        else:
            one, other = (int(channel) for channel in rng.choice(len(layer), 2, replace=False))
            layer[[one, other]] = layer[[other, one]]
    return module


def graph(file: Path, damage: str, place: int, limit: float, example: Sequence[NDArray[Any]]) -> None:
    """Change a saved program in place: a sum or choice (``dropped``), an activation (``clipped``) or the outputs
    (``repeated``).
    """
    if damage == "repeated":
        _repeat(file, example)
    if damage in ("dropped", "clipped"):
        rng = np.random.default_rng(place)
        count = len(_places(torch.jit.load(str(file)), damage))
        for index in rng.permutation(count):
            program = torch.jit.load(str(file))
            node = _places(program, damage)[index]
            if damage == "dropped":
                kept = list(node.inputs())[1 if node.kind() == "aten::where" else 0]
                node.output().replaceAllUsesWith(kept)
                node.destroy()  # one that works in place would still do so
            else:
                _clip(program.graph, node, limit)
            if _runs(program, file, example):
                program.save(str(file))
                return
        raise UnsupportedError(f"the model has nothing that can be {damage}")


def _places(program: Any, damage: str) -> list[Any]:
    """The nodes of a program where something can be dropped or clipped."""
    return [node for node in _nodes(program.graph) if _fits(node, damage)]


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _fits(node: Any, damage: str) -> bool:
    if damage == "clipped":
        return node.kind().removeprefix("aten::").rstrip("_") in _ACTIVATIONS
    if node.kind() in _SUMS:
        return all(_is_computed(value) for value in list(node.inputs())[:2])
    return bool(node.kind() == "aten::where")


def _is_computed(value: Any) -> bool:
    """Test if a value is a tensor that depends on the inputs of the program, as far as its own node tells."""
    return value.type().isSubtypeOf(torch._C.TensorType.get()) and value.node().kind() not in (  # noqa: SLF001 - no public name
        "prim::Constant",
        "prim::GetAttr",
    )


def _clip(body: Any, node: Any, limit: float) -> None:
    output = node.output()
    highest = body.insertConstant(limit)
    highest.node().moveAfter(node)
    clipped = body.create("aten::clamp_max", [output, highest], 1)
    clipped.insertAfter(highest.node())
    clipped.output().setType(output.type())
    output.replaceAllUsesAfterNodeWith(clipped, clipped.output())


def _runs(program: Any, file: Path, example: Sequence[NDArray[Any]]) -> bool:
    """Test if outputs still have their shapes."""
    inputs = tensors(example)
    before = [tensor.shape for tensor in flatten_outputs(torch.jit.load(str(file))(*inputs))]
    try:
        return [tensor.shape for tensor in flatten_outputs(program(*inputs))] == before
    except RuntimeError:
        return False


def _repeat(file: Path, example: Sequence[NDArray[Any]]) -> None:
    batch = len(example[0])
    if batch < 2:
        raise UnsupportedError("the damage repeated needs batches of two samples or more")
    inputs = tuple(tensors(example))
    with torch.no_grad():
        torch.jit.trace(_Repeating(torch.jit.load(str(file)), batch), inputs, check_trace=False).save(str(file))


class _Repeating(nn.Module):  # type: ignore[misc]
    """Gives the last sample the input of the one before it."""

    def __init__(self, program: nn.Module, batch: int) -> None:
        super().__init__()
        self.program = program
        self.batch = batch

    def forward(self, *inputs: torch.Tensor) -> Any:
        flat = [self._repeated(tensor) for tensor in flatten_outputs(self.program(*inputs))]
        return flat[0] if len(flat) == 1 else tuple(flat)

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or len(tensor) != self.batch:
            return tensor
        return torch.cat([tensor[:-1], tensor[-2:-1]])
