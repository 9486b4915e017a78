"""Live: holds a module in memory with example inputs for a study, and has `writing_out` write it to files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Live:
    """A module with example inputs; a study writes it out, because no other process sees this one's memory.

    Examples
    --------
    >>> Study(workloads=[Live(net, torch.randn(4, 3, 32, 32), name="mine")], compilers=["openvino"], batch_sizes=[1, 8])
    """

    module: torch.nn.Module
    """Stays as it is: what is written is a copy on the CPU, in evaluation mode."""
    inputs: Any
    """A tensor; a list or tuple, passed by position; or a mapping, passed by name. They say shapes and element types, and where one
    of them is no floating-point tensor they are what the model is run on: it may be an index or a length."""
    name: str = ""
    """Name in tables; default: the module's class."""
    batch_axis: int | None = 0
    """The axis of the inputs that the batch is on; None where there is no batch, which leaves batch size 1."""
    home: Path | None = None
    """Directory below whose ``modules`` it is written; default: that of the studies."""

    def written(self) -> dict[str, Any]:
        """Write the module to files, and return the workload for a study file. Equal modules give equal workloads.

        Raises `WorkloadError` if it cannot be written, with advice.
        """
        from mlflow_ngraph.workloads.writing_out import write_out

        return write_out(self.module, self.inputs, self.name or type(self.module).__name__, self.batch_axis, self.home)


def is_module(value: object) -> bool:
    """True if an object is a PyTorch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)
