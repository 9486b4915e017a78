"""Explain an engine of ONNX Runtime by its optimised graph and a profile of two runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_ngraph.compilers import onnx_graph
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.onnx_graph import Node
from mlflow_ngraph.compilers.onnxruntime.fusion import BLOCKED, fused
from mlflow_ngraph.compilers.onnxruntime.opening import Opened, Opener
from mlflow_ngraph.compilers.onnxruntime.providers import can_tell
from mlflow_ngraph.workloads.base import TensorSpec

_RUNS = 2
"""The first run plans memory; the last one is reported."""
_SUFFIX = "_kernel_time"
_MOVES = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})
_TOLD = ("nodes_by_provider", "fallback_nodes", "fallback_operators")
_STANDARD = "ai.onnx"
_LAYOUTS = {BLOCKED: "NCHWc", "com.ms.internal.nhwc": "NHWC"}


@dataclass(frozen=True)
class GraphPart:
    """Nodes that one provider took together."""

    provider: str
    nodes: tuple[Node, ...]


def explain(opener: Opener, inputs: Sequence[TensorSpec], batch: int) -> Explanation:
    """Load the engine with the runtime's profiler, run it on zeros, and read the profile."""
    source = onnx_graph.read_nodes(opener.layout.source_nodes(batch))
    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"

        def configure(options: Any) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            # Other providers' sessions hold compiled nodes, which no file can express.
            if opener.provider.name in ("cpu", "cuda"):
                options.optimized_model_filepath = str(optimised)
                options.add_session_config_entry(
                    "session.optimized_model_external_initializers_file_name", "optimised.weights"
                )

        opened = opener.open(batch, configure)
        feed = {spec.name: np.zeros(spec.resolve(batch), spec.dtype) for spec in inputs}
        for _ in range(_RUNS):
            opened.session.run(None, {name.name: feed[name.name] for name in opened.session.get_inputs()})
        events = json.loads(Path(opened.session.end_profiling()).read_text(encoding="utf-8"))
        steps = onnx_graph.nodes(onnx_graph.read(optimised)) if optimised.is_file() else []
    parts = _parts(opened)
    domains = {node.name: node.domain for part in parts for node in part.nodes} | {
        step.name: step.domain for step in steps
    }
    profiled = kernels(events, domains, fused(source, steps), parts)
    return Explanation(
        nodes_before=len(source),
        nodes_after=len(profiled),
        layout_changes=sum(kernel.operation in _MOVES for kernel in profiled),
        kernels=tuple(profiled),
        facts={name: value for name in _TOLD if (value := opened.facts.get(name)) is not None},
    )


def kernels(
    events: Sequence[Mapping[str, Any]],
    domains: Mapping[str, str],
    groups: Mapping[str, tuple[str, ...]],
    parts: Sequence[GraphPart],
) -> list[Kernel]:
    """Kernels of the last run in a profile.

    ``domains`` has the domain of each step's operator, and ``groups`` the names of the model's nodes that a step
    computes.
    """
    began = max(event["ts"] for event in events if event["name"] == "model_run")
    # Such a part is one step, with a name of the provider's own. They are numbered in their order.
    whole = {
        name: iter([part for part in parts if part.provider == name]) for name in {part.provider for part in parts}
    }
    steps = []
    for event in events:
        if event["cat"] != "Node" or event["ts"] < began or not event["name"].endswith(_SUFFIX):
            continue
        name, said = event["name"].removesuffix(_SUFFIX), event["args"]
        domain, provider = domains.get(name), said["provider"]
        part = next(whole[provider], None) if domain is None and provider in whole else None
        group = tuple(node.name for node in part.nodes) if part else groups.get(name, ())
        steps.append(
            Kernel(
                name=name,
                operation=said["op_name"],
                fused=group if len(group) > 1 else (),
                implementation="" if domain is None else domain or _STANDARD,
                layout="" if said["op_name"] == "ReorderOutput" else _LAYOUTS.get(domain or "", ""),
                precision=_element_type(said.get("output_type_shape", ())),
                provider=provider,
                microseconds=float(event["dur"]),
            )
        )
    return steps


def _element_type(outputs: Sequence[Mapping[str, Any]]) -> str:
    return next(iter(outputs[0]), "") if outputs else ""


def _parts(opened: Opened) -> list[GraphPart]:
    """Nodes by provider, where the runtime reports them."""
    if not can_tell(opened.session):
        return []
    return [
        GraphPart(
            part.ep_name,
            tuple(Node(node.name, node.op_type, node.domain, (), ()) for node in part.get_nodes()),
        )
        for part in opened.session.get_provider_graph_assignment_info()
    ]
