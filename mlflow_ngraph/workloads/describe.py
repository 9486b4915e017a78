"""Collect inputs, parameters and MACs of a workload, building it if needed. For child processes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import Workload, WorkloadInfo, fixed_batch
from mlflow_ngraph.workloads.baseline import ModuleBaseline, output_specs
from mlflow_ngraph.workloads.samples import drawn

if TYPE_CHECKING:
    import torch


_SEVERAL = 2


def describe(workload: Workload) -> WorkloadInfo:
    """Properties of a workload, from the catalogue, else from building and counting it.

    Raises `WorkloadError` if it cannot be built, or fails on its own inputs.
    """
    if workload.known is not None:
        return workload.known
    try:
        baseline = ModuleBaseline(workload.module())
        output_specs(baseline, workload.inputs(), str(workload.ref), workload.samples())
    except UnsupportedError:
        return describe_built(workload, None)
    return describe_built(workload, baseline.module)


def describe_built(workload: Workload, module: torch.nn.Module | None) -> WorkloadInfo:
    """Properties of a built model; without a module nothing is counted."""
    if workload.known is not None:
        return workload.known
    inputs = workload.inputs()
    if module is not None and (unbounded := workload.unbounded()):
        from mlflow_ngraph.workloads.index_bounds import bounded

        inputs = bounded(module, inputs, unbounded)
    only = fixed_batch(inputs, workload.batch_axis)
    parameters = paper_macs = true_macs = None
    if module is not None:
        parameters = sum(parameter.numel() for parameter in module.parameters())
        # Not every model takes a sample alone: one that normalises by its batch does not.
        for batch in (1, _SEVERAL) if only is None else (only,):
            try:
                paper_macs, true_macs = _counted(module, workload, batch)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S112 - it runs, and does not let itself be watched: nothing is counted
                continue
            break
    return WorkloadInfo(
        ref=str(workload.ref),
        label=workload.label,
        family=workload.family,
        inputs=inputs,
        parameters=parameters,
        paper_macs=paper_macs,
        true_macs=true_macs,
        fixed_batch=only,
    )


def _counted(module: torch.nn.Module, workload: Workload, batch: int) -> tuple[int | None, int]:
    """The paper's and true MACs of one sample out of ``batch``."""
    from mlflow_ngraph.workloads.calling import tensors
    from mlflow_ngraph.workloads.macs import count

    example = drawn(workload.inputs(), workload.samples(), batch, np.random.default_rng(0))
    _, paper_macs, true_macs = count(module, tensors(example))
    return None if paper_macs is None else paper_macs // batch, true_macs // batch
