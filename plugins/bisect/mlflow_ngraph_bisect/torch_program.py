"""TorchProgram: cuts an exported program into parts, saves and computes them. For child processes only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import fx

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.baseline import ModuleBaseline
from mlflow_ngraph.workloads.calling import arrays, tensors
from mlflow_ngraph.workloads.exporting import save_program
from mlflow_ngraph.workloads.materials import arrays_file
from mlflow_ngraph.workloads.preparing import Preparation
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph_bisect.program import InseparableError, Node, Part, Program

_FILE = "part.pt2"


class TorchProgram(Program):
    """The graph of ``torch.export``; a branch or loop of it is one node."""

    suffix: str = ".pt2"

    def __init__(self, module: torch.nn.Module, inputs: Sequence[NDArray[Any]]) -> None:
        self._module = _graph_of(module, tuple(tensors(inputs)))
        everything = list(self._module.graph.nodes)
        self._calls = [node for node in everything if node.op in ("call_function", "call_method")]
        self.nodes = [_node(node) for node in self._calls]
        (output,) = (node for node in everything if node.op == "output")
        self.outputs = tuple(dict.fromkeys(node.name for node in output.all_input_nodes))
        recorded = _Recorded(self._module)
        with torch.no_grad():
            recorded.run(*tensors(inputs))
        self._values = recorded.values

    def part(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool = False) -> Part:
        ordered = sorted(nodes)
        graph, copies = fx.Graph(), {}
        chosen = {self._calls[place] for place in ordered}
        needed = [other for node in self._calls if node in chosen for other in node.all_input_nodes]
        inputs = {}
        for node in dict.fromkeys(other for other in needed if other not in chosen and other.op != "get_attr"):
            inputs[node.name] = self._array(node.name)
            copies[node] = graph.placeholder(node.name)
        if not inputs:
            raise InseparableError("nothing goes into these nodes")
        for node in self._module.graph.nodes:
            if node in chosen or (node.op == "get_attr" and node in needed):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        by_name = {node.name: copied for node, copied in copies.items()}
        given, kinds = [by_name[name] for name in outputs], {self._array(name).dtype.kind for name in outputs}
        if negated:
            if not kinds <= set("fi"):
                raise InseparableError("not every output has a sign")
            given = [graph.call_function(torch.ops.aten.neg.default, (node,)) for node in given]
        graph.output(tuple(given))
        model = fx.GraphModule(self._module, graph).eval()
        return Part(tuple(ordered), tuple(outputs), inputs, model, negated)

    def save(self, part: Part, path: Path) -> None:
        try:
            program = torch.export.export(part.model, tuple(tensors(list(part.inputs.values()))))
        except Exception as error:  # what export raises about nodes that are no model by themselves
            raise InseparableError(" ".join(str(error).split())[:200]) from error
        save_program(program, path)

    def prepare(self, part: Part, directory: Path) -> int:
        directory.mkdir(parents=True)
        path = directory.with_name(_FILE)
        self.save(part, path)
        preparation = Preparation(create(WorkloadRef("pt2", str(path)), Init()), directory, seed=0)
        materials = preparation.materials
        batch = materials.info.fixed_batch or 1
        save_arrays(directory / arrays_file("inputs", batch), *part.inputs.values())
        materials.batch_sizes = [batch]
        preparation.export(["exported"])
        materials.write(directory)
        return batch

    def exact(self, part: Part) -> list[NDArray[Any]]:
        try:
            return self._baseline(part).exact(list(part.inputs.values()))
        except Exception as error:  # a model raises anything in another precision than its own
            raise InseparableError(f"it does not run in double precision: {one_line(error)}") from error

    def rounded(self, part: Part) -> list[NDArray[Any]]:
        return self._baseline(part).run(list(part.inputs.values()))

    def disturbed(self, part: Part, seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        return self._baseline(part).disturbances(list(part.inputs.values()), seed)

    def visible(self) -> list[str]:
        return [node.outputs[0] for node in self.nodes if isinstance(self._values[node.outputs[0]], torch.Tensor)]

    def _baseline(self, part: Part) -> ModuleBaseline:
        """Part as a model of its own, with its outputs unchanged."""
        plain = self.part(part.nodes, part.outputs) if part.negated else part
        return ModuleBaseline(plain.model)

    def _array(self, name: str) -> NDArray[Any]:
        value = self._values[name]
        if not isinstance(value, torch.Tensor):
            raise InseparableError(f"{name} is no tensor")
        if value.dtype is torch.bfloat16:
            raise InseparableError(f"{name} is bfloat16, which NumPy has not")
        (array,) = arrays(value)
        return array


class _Recorded(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph and records every value, with copies of those that nodes change in place later."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op != "output":
            self.values[n.name] = result.clone() if isinstance(result, torch.Tensor) else result
        return result


def _graph_of(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Export to one graph of PyTorch's operators, without assertions and in-place changes."""
    program = torch.export.export(module, inputs).run_decompositions({})
    graph_module = program.module()
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" or (node.op == "call_function" and not node.users and not _gives_anything(node)):
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _gives_anything(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _node(node: fx.Node) -> Node:
    operator = str(node.target).removeprefix("aten.") if node.op == "call_function" else str(node.target)
    if callable(node.target) and not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001
        operator = getattr(node.target, "__name__", operator)
    inputs = tuple(other.name for other in node.all_input_nodes)
    return Node(node.name, operator, inputs, (node.name,))
