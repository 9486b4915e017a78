"""Workload of a saved ``torch.export`` program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.file import FileWorkload, copied, linked, require_content
from mlflow_ngraph.workloads.specs import DeclaredInput, resolve

if TYPE_CHECKING:
    import torch

_COPY = "source.pt2"


class ExportedWorkload(FileWorkload):
    """``pt2:<path>``."""

    scheme: ClassVar[str] = "pt2"

    def inputs(self) -> tuple[TensorSpec, ...]:
        program = self._load()
        names = program.graph_signature.user_inputs
        values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        declared = [self._declare(name, values.get(name)) for name in names]
        return resolve(declared, self._options, str(self.ref))

    def unbounded(self) -> set[str]:
        if self._options.high is not None:
            return set()
        return {spec.name for spec in self.inputs()} - self._options.ranges.keys()

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.calling import called_flat

        return called_flat(self._load())

    def localise(self, directory: Path) -> ExportedWorkload:
        local = ExportedWorkload(self.ref, self.init)
        local._path = directory / _COPY
        if not local._path.is_file():
            self.inputs()  # refuses a file that is none
            (linked if self._own else copied)(self._path, local._path)
        local._own = True
        return local

    def _load(self) -> torch.export.ExportedProgram:
        from mlflow_ngraph.workloads import programs

        require_content(self._path, "exported program")
        try:
            return programs.read(self._path)
        except Exception as error:  # torch raises whatever the damaged part of the file leads to
            raise WorkloadError(f"{self._path} is no torch.export program: {one_line(error)}") from error

    def _declare(self, name: Any, value: Any) -> DeclaredInput:
        import torch

        if not isinstance(value, torch.Tensor):
            raise WorkloadError(f"{self._path}: input {name!r} is no tensor: export the program for tensors only")
        sizes = [size if isinstance(size, int) else str(size) for size in value.shape]
        return DeclaredInput(name, str(value.dtype).removeprefix("torch."), sizes)
