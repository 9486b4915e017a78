"""Match nodes of an optimised graph with the model's nodes that they compute.

ONNX Runtime does not report it; it is found by the names of values, which most rewrites keep. Convolutions in blocked
layout are the exception: their outputs are new values, but their own name tells the origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_ngraph.compilers.onnx_graph import Node

BLOCKED = "com.microsoft.nchwc"
"""The domain of operators on activations in blocks of channels."""
_BLOCKED_NAME = "_nchwc"
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "Tanh"})
"""Operators that a preceding convolution in blocked layout absorbs."""
_SUMS = frozenset({"Add", "Sum"})
"""The same, for one that has a fourth input: what is added to its result."""
_SUMMAND = 3


def fused(source: Sequence[Node], steps: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """Names of the nodes of ``source`` by the step that computes them, for steps that compute several."""
    producers = {value: node for node in source for value in node.outputs}
    meaning = _meaning(source, steps, producers)
    held = set(meaning.values()) | {meaning.get(value, value) for step in steps for value in step.inputs}
    groups = {}
    for step in steps:
        if _only_reorders(step):
            continue
        values = [meaning[value] for value in step.outputs if value in meaning]
        computed = {node.name for value in values for node in _computed(value, held, producers)}
        if len(computed) > 1:
            groups[step.name] = tuple(node.name for node in source if node.name in computed)
    return groups


def _meaning(source: Sequence[Node], steps: Sequence[Node], producers: Mapping[str, Node]) -> dict[str, str]:
    """Value of ``source`` that equals a value of the optimised graph."""
    meaning = {value: value for step in steps for value in step.outputs if value in producers}
    began = _began(source, steps, producers, meaning)
    # What is only reordered was computed by the step before.
    anchors = set(began.values()) | {
        meaning[value] for step in steps if not _only_reorders(step) for value in step.outputs if value in meaning
    }
    consumers: dict[str, list[Node]] = {}
    for node in source:
        for value in node.inputs:
            consumers.setdefault(value, []).append(node)
    for step in steps:
        for value in step.outputs:
            if value in began:
                meaning[value] = _reached(step, began[value], anchors, consumers)
            elif _only_reorders(step):
                meaning.setdefault(value, meaning.get(step.inputs[0], step.inputs[0]))
    return meaning


def _only_reorders(step: Node) -> bool:
    """True if a step only changes the layout of its input."""
    return step.domain == BLOCKED and step.operation.startswith("Reorder")


def _began(
    source: Sequence[Node], steps: Sequence[Node], producers: Mapping[str, Node], known: Mapping[str, str]
) -> dict[str, str]:
    """Original value of a renamed one: steps keep the name of their node, or of its output."""
    by_name = {node.name: node for node in source}
    origins: dict[str, str] = {}
    for step in steps:
        stem = step.name.removesuffix(_BLOCKED_NAME)
        names: tuple[str, ...] = ()
        if step.name in by_name:
            names = by_name[step.name].outputs
        elif stem != step.name and stem in producers:
            names = (stem,)
        origins.update({value: name for value, name in zip(step.outputs, names, strict=False) if value not in known})
    return origins


def _reached(step: Node, value: str, anchors: set[str], consumers: Mapping[str, Sequence[Node]]) -> str:
    """Last value that ``step`` computes, starting at ``value``."""
    if step.domain != BLOCKED:
        return value
    absorbed = _ACTIVATIONS | (_SUMS if len(step.inputs) > _SUMMAND and step.inputs[_SUMMAND] else set())
    following = consumers.get(value, ())
    while len(following) == 1 and following[0].operation in absorbed and following[0].outputs[0] not in anchors:
        value = following[0].outputs[0]
        following = consumers.get(value, ())
    return value


def _computed(value: str, held: set[str], producers: Mapping[str, Node]) -> list[Node]:
    """Nodes between ``value`` and other values of the optimised graph."""
    nodes: list[Node] = []
    pending = [value]
    while pending:
        current = pending.pop()
        node = producers.get(current)
        if node is None or node in nodes or (current in held and current != value):
            continue
        nodes.append(node)
        pending.extend(node.inputs)
    return nodes
