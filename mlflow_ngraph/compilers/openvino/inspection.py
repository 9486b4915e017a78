"""Explain an engine of OpenVINO by its runtime model with the counters of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.compilers.openvino.running import filled
from mlflow_ngraph.workloads.base import TensorSpec

PROFILED: Mapping[str, bool] = {"PERF_COUNT": True}
"""Configuration that makes the runtime measure every step."""
_RUNS = 2
"""The first run prepares primitives; the counters are those of the last one."""
_MOVES = frozenset({"Reorder", "Transpose"})
_NOT_EXECUTED = "not_executed"


def explain(
    compiled: Any,
    inputs: Sequence[TensorSpec],
    batch: int,
    nodes_before: int | None,
    facts: Mapping[str, str | int | float | bool],
) -> Explanation:
    """Run a model that was compiled with `PROFILED` on zeros, and read its runtime model."""
    request = filled(compiled, inputs, [np.zeros(spec.resolve(batch), spec.dtype) for spec in inputs])
    for _ in range(_RUNS):
        request.infer()
    profiled = kernels([_said(step) for step in compiled.get_runtime_model().get_ordered_ops()])
    return Explanation(
        nodes_before=nodes_before,
        nodes_after=len(profiled),
        layout_changes=sum(kernel.operation in _MOVES for kernel in profiled),
        kernels=tuple(profiled),
        facts=facts,
    )


def kernels(steps: Sequence[Mapping[str, str]]) -> list[Kernel]:
    """Executed steps in order.

    Constants, inputs and outputs are left out, as are steps folded at compile time and renames of memory.
    """
    executed = [step for step in steps if step.get("execTimeMcs", _NOT_EXECUTED) != _NOT_EXECUTED]
    return [_kernel(step) for step in sorted(executed, key=lambda step: int(step["execOrder"]))]


def _kernel(said: Mapping[str, str]) -> Kernel:
    nodes = tuple(name for name in said.get("originalLayersNames", "").split(",") if name)
    return Kernel(
        name=said["name"],
        operation=said["layerType"],
        fused=nodes if len(nodes) > 1 else (),
        implementation=said.get("primitiveType", ""),
        layout=said.get("outputLayouts", ""),
        precision=said.get("runtimePrecision", ""),
        microseconds=float(said["execTimeMcs"]),
    )


def _said(step: Any) -> dict[str, str]:
    """Properties of a step."""
    return {"name": step.get_friendly_name(), **{key: str(value.value) for key, value in step.get_rt_info().items()}}
