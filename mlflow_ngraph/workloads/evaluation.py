"""Set and check evaluation mode: a network with dropout or batch statistics is not the deployed one.

A wrapper, counter or exporter may switch modes: a new wrapper begins in training mode, and code that restores a
wrapper's mode hands it down to everything below. Imports torch: for child processes only.
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
    """Set and check evaluation mode, and turn gradients off: some layers compute otherwise with them.

    Raises `WorkloadError` if a module stays in training mode, because it overrides ``train``.
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
def modes_restored(module: nn.Module) -> Iterator[None]:
    """Restore the mode of every module after the block, one by one."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


def training_operations(program: torch.export.ExportedProgram) -> list[str]:
    """Operations of an exported program in training mode, such as ``dropout (p=0.1) in model.encoder``."""
    return [
        f"{what}{_place(node)}"
        for graph in program.graph_module.modules()
        if isinstance(graph, torch.fx.GraphModule)
        for node in graph.graph.nodes
        if node.op == "call_function" and (what := _in_training(node))
    ]


def _modes(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules by name, without exported programs: their operators alone define their mode."""
    exported = [name for name, part in module.named_modules() if isinstance(part, ExportedGraph)]
    for name, part in module.named_modules():
        if not any(name == prefix or name.startswith(f"{prefix}.") or not prefix for prefix in exported):
            yield name, part


def _in_training(node: torch.fx.Node) -> str:
    """Describe a node in training mode; empty for any other."""
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
    """Arguments of a call by the names of the operator's schema."""
    named = {argument.name: value for argument, value in zip(known, node.args, strict=False)}
    defaults = {argument.name: argument.default_value for argument in known if argument.has_default_value()}
    return {**defaults, **named, **node.kwargs}


def _place(node: torch.fx.Node) -> str:
    """Module of a node, as far as the exporter records it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((path for path, _ in reversed(list(stack.values())) if path), "")
    return f" in {path}" if path else ""
