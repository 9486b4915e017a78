"""Registry of workload schemes: creates a workload from its reference, and lists the paper's models and blocks."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph.entry_points import Entry, Registry
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, Workload, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.catalogue import find_paper_model, paper_blocks, paper_models

_HERE = "mlflow_ngraph.workloads"

PAPER = "paper"
"""Stands for a name of the paper, such as ``paper:resnet18``; never part of a canonical reference."""
_FILES = {".onnx": "onnx:{path}", ".pt2": "pt2:{path}", ".py": "torch:{stem}:FUNCTION, with its inputs in a study file"}
"""References to files, by suffix."""

WORKLOADS: Registry[Workload] = Registry(
    "workload scheme",
    "mlflow_ngraph.workloads",
    {
        "timm": Entry(f"{_HERE}.timm:TimmWorkload"),
        "block": Entry(f"{_HERE}.block:BlockWorkload"),
        "onnx": Entry(f"{_HERE}.onnx:OnnxWorkload"),
        "torch": Entry(f"{_HERE}.torch_factory:TorchWorkload"),
        "pt2": Entry(f"{_HERE}.pt2:ExportedWorkload"),
        "mlflow": Entry(f"{_HERE}.mlflow_model:MlflowWorkload"),
    },
)


def create(ref: WorkloadRef, init: Init) -> Workload:
    """Create the workload of a reference. Imports no torch; ``str(workload.ref)`` is its canonical name.

    Raises `UnknownNameError` for an unknown scheme or model of the paper, and `WorkloadError` for a wrong option.
    """
    if ref.scheme == PAPER:
        _require_no_file(ref.target)
        ref = WorkloadRef("timm", find_paper_model(ref.target).timm_name, ref.options)
    return WORKLOADS.get(ref.scheme)(ref, init)


def _require_no_file(name: str) -> None:
    """Files have schemes of their own."""
    path = Path(name)
    if path.suffix in _FILES and path.is_file():
        raise WorkloadError(f"{name} is a file: write {_FILES[path.suffix].format(path=name, stem=path.stem)}")


def catalogue() -> list[WorkloadInfo]:
    """The 15 models and 8 blocks (at depth 1) of the paper."""
    refs = [WorkloadRef("timm", name) for name in paper_models()]
    refs += [WorkloadRef("block", row.block, {"width": row.width}) for row in paper_blocks()]
    known = (create(ref, Init()).known for ref in refs)
    return [info for info in known if info is not None]
