"""Evaluation mode, proven: a network that drops activations or normalises by its batch is not the one that is deployed.

Whatever wraps, counts or exports a model may switch modes: a new wrapper begins in training mode, and whoever remembers
the mode of a wrapper and restores it hands it down to everything below. Imports torch: for child processes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.calling import ExportedGraph

_DROPPING = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout")
"""Operators of ATen whose third argument says whether they draw; the second is the probability."""
_NORMALISING = {
    "batch_norm": "training",
    "native_batch_norm": "training",
    "_native_batch_norm_legit": "training",
    "_native_batch_norm_legit_functional": "training",
    "cudnn_batch_norm": "training",
    "_batch_norm_with_update": "",
    "_batch_norm_with_update_functional": "",
}
"""Operators that may normalise by the statistics of their batch, and the argument that says so; with an empty name they
always do. Without running statistics the model means just that."""


def evaluate(module: nn.Module, workload: str) -> nn.Module:
    """Put a model into evaluation mode, and see that it is. No gradients either: some layers compute otherwise with them.

    Raises
    ------
    WorkloadError
        A module stays in training mode, because its author has overridden ``train``; names it.
    """
    module.eval()
    for parameter in module.parameters():  # one by one: a scripted module does not do it for all
        parameter.requires_grad_(False)
    insisting = [(name or "the model itself", type(part).__name__) for name, part in _modes(module) if part.training]
    if insisting:
        name, kind = insisting[0]
        raise WorkloadError(
            f"workload {workload}: {name} ({kind}) stays in training mode after eval(): "
            "let its train() pass on the mode that it is given"
        )
    return module


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Give every module back the mode that it had before the block, one by one."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def training_operations(program: torch.export.ExportedProgram) -> list[str]:
    """What an exported program does as in training, such as ``dropout (p=0.1) in model.encoder``."""
    return [
        f"{what}{_place(node)}"
        for graph in program.graph_module.modules()
        if isinstance(graph, torch.fx.GraphModule)
        for node in graph.graph.nodes
        if node.op == "call_function" and (what := _in_training(node))
    ]


def _modes(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, but those of exported programs: their operators alone say what they do."""
    exported = [name for name, part in module.named_modules() if isinstance(part, ExportedGraph)]
    for name, part in module.named_modules():
        if not any(name == prefix or name.startswith(f"{prefix}.") or not prefix for prefix in exported):
            yield name, part


def _in_training(node: torch.fx.Node) -> str:
    """What a node does as in training; empty where it does nothing of the kind."""
    schema = getattr(node.target, "_schema", None)  # what is no operator, such as getitem, has none
    if schema is None:
        return ""
    name, given = schema.name.removeprefix("aten::"), _arguments(node, schema.arguments)
    if name in _DROPPING:
        probability = given.get("p", 0.0)
        return f"{name} (p={probability})" if given.get("train") and probability else ""
    if name in _NORMALISING:
        switch = _NORMALISING[name]
        if (not switch or given.get(switch)) and given.get("running_mean") is not None:
            return f"{name} by the statistics of its batch"
    if name in ("rrelu", "rrelu_with_noise") and given.get("training"):
        return f"{name} with random slopes"
    return ""


def _arguments(node: torch.fx.Node, known: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the operator's schema."""
    named = {argument.name: value for argument, value in zip(known, node.args, strict=False)}
    defaults = {argument.name: argument.default_value for argument in known if argument.has_default_value()}
    return {**defaults, **named, **node.kwargs}


def _place(node: torch.fx.Node) -> str:
    """Where in the model a node comes from, as far as the exporter says."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(list(stack.values())) if path), "")
    return f" in {path}" if path else ""
