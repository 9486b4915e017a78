"""Many conformance cases as one model, for a compiler that takes long to start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import onnx
from onnx import compose, helper

from mlflow_ngraph.workloads.base import Format

from .onnx_cases import Attempt, Case, Outcome, difference

NEWEST = onnx.defs.onnx_opset_version()


def together(
    cases: Sequence[Case], directory: Path, compiler: str, formats: Sequence[Format]
) -> Iterator[tuple[Case, Outcome | None]]:
    """Put cases through a compiler as one model; where that fails, half as many at a time, down to each by itself.

    Before an attempt its first case comes without an outcome.
    """
    yield cases[0], None
    if len(cases) > 1:
        try:
            attempt = Attempt(merged(cases), directory / f"{cases[0].name}-{len(cases)}", formats)
            outputs = iter(attempt.outputs(compiler))
        except Exception:  # noqa: BLE001 - one of them is at fault, and says so by itself
            middle = len(cases) // 2
            yield from together(cases[:middle], directory, compiler, formats)
            yield from together(cases[middle:], directory, compiler, formats)
            return
        for case in cases:
            problem = difference(list(islice(outputs, len(case.model.graph.output))), case.data()[1], case)
            yield case, Outcome("wrong", problem) if problem else Outcome("ok")
        return
    for case in cases:
        yield case, Attempt(case, directory / case.name, formats).through(compiler)


def alike(cases: Sequence[Case], most: int) -> Iterator[list[Case]]:
    """Groups of cases that go into one model: of one set of operators, or of sets that mean the same."""
    for _, group in groupby(sorted(cases, key=_opset), key=_opset):
        members = iter(group)
        while chunk := list(islice(members, most)):
            yield chunk


def merged(cases: Sequence[Case]) -> Case:
    """One case with the nodes, inputs and outputs of all, under names of their own."""
    graphs = [compose.add_prefix(case.model, f"case{index}/").graph for index, case in enumerate(cases)]
    content = helper.make_graph(
        [node for graph in graphs for node in graph.node],
        "cases",
        [value for graph in graphs for value in graph.input],
        [value for graph in graphs for value in graph.output],
        [tensor for graph in graphs for tensor in graph.initializer],
    )
    version = max(case.model.ir_version for case in cases)
    model = helper.make_model(content, opset_imports=[helper.make_opsetid("", _opset(cases[0]))], ir_version=version)

    def data() -> tuple[list[Any], list[Any]]:
        parts = [case.data() for case in cases]
        return [array for inputs, _ in parts for array in inputs], [array for _, outputs in parts for array in outputs]

    return Case("merged", cases[0].group, model, data, cases[0].rtol, cases[0].atol)


def _opset(case: Case) -> int:
    """The newest set in which the operators of a case are still what they were, else its own."""
    own: int = next(entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx"))
    standard = all("." not in name for name in case.operators)
    kept = standard and all(onnx.defs.get_schema(name, NEWEST, "").since_version <= own for name in case.operators)
    return NEWEST if kept else own
