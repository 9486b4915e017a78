"""Describe optimised TorchScript graphs. Imports torch, so import it inside the methods of the adapter only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mlflow_ngraph.compilers.base import Engine
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.spec import EngineSpec

_RUNS_UNTIL_SPECIALISED = 3
"""The executor watches the types of the first runs, and compiles the graph that it keeps in the next."""
_MOVES = ("aten::clone", "aten::contiguous", "aten::to", "aten::to_mkldnn", "aten::to_dense")


def executed(graph: Any) -> list[Any]:
    """Computing nodes of a graph: operators, and fused groups."""
    return [node for node in _nodes(graph) if _computes(node)]


def describe(saved_graph: Any, engine: Engine, saved: EngineSpec, batch: int) -> Explanation:
    """Describe the graph of PyTorch's executor after some runs; ``saved_graph`` is the frozen graph."""
    rng = np.random.default_rng(0)
    invocation = engine.bind([spec.random(batch, rng) for spec in saved.inputs])
    for _ in range(_RUNS_UNTIL_SPECIALISED):
        invocation.call()
    graph = torch.jit.last_executed_optimized_graph()
    kernels = tuple(_kernel(node) for node in executed(graph))
    return Explanation(
        nodes_before=int(str(saved.facts["operators"])),
        nodes_after=len(kernels),
        layout_changes=sum(kernel.operation in _MOVES for kernel in kernels),
        kernels=kernels,
        facts={
            "operators_saved": len(executed(saved_graph)),
            "fusion_groups": sum(bool(kernel.fused) for kernel in kernels),
            "fuses_on_cpu": bool(torch._C._jit_can_fuse_on_cpu()),  # noqa: SLF001 - no public name for it
        },
    )


def _nodes(block: Any) -> Iterator[Any]:
    """All nodes of a graph and its blocks, in order.

    Of a branch on the validity of a fused kernel, the fused side is taken.
    """
    fits = False
    for node in block.nodes():
        yield node
        guarded = node.kind() == "prim::If" and fits
        for inner in list(node.blocks())[: 1 if guarded else None]:
            yield from _nodes(inner)
        fits = node.kind() in ("prim::TypeCheck", "prim::RequiresGradCheck")


def _computes(node: Any) -> bool:
    kind: str = node.kind()
    return not kind.startswith("prim::") or _is_group(node)


def _is_group(node: Any) -> bool:
    return bool(node.kind().endswith(("Group", "Fusion", "FusionGroup")) and node.hasAttribute("Subgraph"))


def _kernel(node: Any) -> Kernel:
    members = [inner.kind() for inner in executed(node.g("Subgraph"))] if _is_group(node) else []
    output = next(iter(node.outputs()), None)
    kind = output.type() if output is not None else None
    dtype = kind.dtype() if isinstance(kind, torch._C.TensorType) else None  # noqa: SLF001 - the type's only name
    return Kernel(
        name=node.scopeName() or node.kind(),
        operation=node.kind(),
        fused=tuple(members) if len(members) > 1 else (),
        precision=str(dtype).removeprefix("torch.") if dtype is not None else "",
    )
