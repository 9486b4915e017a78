"""What workloads that come from a model file share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.workloads.base import Init, Workload, WorkloadRef
from mlflow_ngraph.workloads.options import canonical, parse_options
from mlflow_ngraph.workloads.specs import FileOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FileWorkload(Workload):
    """``<scheme>:<path>`` with what the file leaves open about its inputs."""

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._options = parse_options(FileOptions, ref)
        super().__init__(canonical(ref, self._options), init)
        self._path = Path(ref.target)

    @property
    def label(self) -> str:
        return self._options.label or Path(self.ref.target).stem

    @property
    def family(self) -> str:
        return self._options.family or self.scheme

    def samples(self) -> list[NDArray[Any]] | None:
        from mlflow_ngraph.workloads import samples

        return samples.given(self._options.samples, self.inputs(), str(self.ref))

    def check(self) -> None:
        self.inputs()
        self.samples()
