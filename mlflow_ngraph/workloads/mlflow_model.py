"""Workload of a model logged to MLflow, in the PyTorch or the ONNX flavor."""

from __future__ import annotations

import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlflow_ngraph.addresses import redacted
from mlflow_ngraph.errors import DependencyError, WorkloadError
from mlflow_ngraph.workloads import own_code
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadRef
from mlflow_ngraph.workloads.file import SampledWorkload, linked
from mlflow_ngraph.workloads.onnx import OnnxWorkload
from mlflow_ngraph.workloads.options import canonical, parse_options
from mlflow_ngraph.workloads.specs import DeclaredInput, FileOptions, Inputs, named_specs, resolve

if TYPE_CHECKING:
    import torch

_COPY = Path("mlflow-model")


class MlflowOptions(FileOptions):
    """Options of ``mlflow:``."""

    inputs: Inputs | None = None
    """The inputs, when the model was logged without a signature; a list or a mapping as for ``torch:``."""


class MlflowWorkload(SampledWorkload):
    """``mlflow:<model URI>``, such as ``mlflow:models:/detector@champion``."""

    scheme: ClassVar[str] = "mlflow"
    _options: MlflowOptions

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._options = parse_options(MlflowOptions, ref)
        super().__init__(canonical(ref, self._options), init)

        self._directory: Path | None = None

    @property
    def label(self) -> str:
        return self._options.label or self.ref.target.rpartition(":")[2].strip("/").replace("/", "-")

    def inputs(self) -> tuple[TensorSpec, ...]:
        onnx = self._as_onnx()
        if onnx is not None:
            return onnx.inputs()
        if self._options.inputs is not None:
            return named_specs(self._options.inputs)
        return resolve(self._declared(), self._options, str(self.ref))

    def unbounded(self) -> set[str]:
        if self._as_onnx() is not None or self._options.high is not None:
            return set()
        given = self._options.inputs or []
        entries = given.values() if isinstance(given, dict) else given
        names = [spec.name for spec in self.inputs()]
        said = {name for name, entry in zip(names, entries, strict=False) if entry.high is not None}
        return set(names) - self._options.ranges.keys() - said

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.calling import called_by_name
        from mlflow_ngraph.workloads.unwrapping import require_values, unwrapped

        onnx = self._as_onnx()
        if onnx is not None:
            return onnx.module()
        model = unwrapped(self._load())
        require_values(model, str(self.ref))
        if isinstance(self._options.inputs, dict):
            model = called_by_name(model, list(self._options.inputs))
        return model.eval()

    def localise(self, directory: Path) -> MlflowWorkload:
        local = MlflowWorkload(self.ref, self.init)
        local._directory = directory / _COPY
        if not local._directory.is_dir():
            partial = directory / f"partial-{_COPY}"
            shutil.rmtree(partial, ignore_errors=True)
            if self._directory is None:
                self._download(partial).rename(local._directory)
            else:
                shutil.copytree(self._directory, partial, copy_function=linked)
                partial.rename(local._directory)
        return local

    def onnx_file(self) -> Path | None:
        onnx = self._as_onnx()
        return None if onnx is None else onnx.onnx_file()

    def file_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._model[1].rglob("*") if file.is_file())

    @cached_property
    def _scratch(self) -> tempfile.TemporaryDirectory[str]:
        """Temporary directory of a model that is inspected before it is prepared."""
        return tempfile.TemporaryDirectory(prefix="mlflow-ngraph-")

    @cached_property
    def _model(self) -> tuple[Any, Path]:
        """Description and directory of the saved model, downloaded once."""
        directory = self._directory or self._download(Path(self._scratch.name))
        from mlflow.models import Model

        model = Model.load(str(directory))
        if not {"pytorch", "onnx"} & set(model.flavors):
            flavors = ", ".join(sorted(model.flavors))
            raise WorkloadError(f"workload {self.ref} has the flavors {flavors}: needed: pytorch or onnx")
        return model, directory

    def _download(self, target: Path) -> Path:
        try:
            import mlflow
        except ImportError as error:
            raise DependencyError("MLflow models need mlflow; install it with: pip install mlflow") from error
        target.mkdir(parents=True, exist_ok=True)
        try:
            downloaded = mlflow.artifacts.download_artifacts(artifact_uri=self.ref.target, dst_path=str(target))
        except (mlflow.MlflowException, OSError) as error:
            reason = redacted(" ".join(str(error).split()), mlflow.get_tracking_uri(), mlflow.get_registry_uri())
            raise WorkloadError(f"workload {self.ref}: cannot fetch the model: {reason}") from error
        return Path(downloaded)

    def _as_onnx(self) -> OnnxWorkload | None:
        """Workload of the ONNX file in a model of the ONNX flavor."""
        model, directory = self._model
        flavor = model.flavors.get("onnx")
        if flavor is None:
            return None
        options = {**self.ref.options, "label": self.label, "family": self.family}
        options.pop("inputs", None)
        onnx = OnnxWorkload(WorkloadRef("onnx", str(directory / flavor["data"]), options), self.init)
        return onnx if self._directory is None else onnx.localise(self._directory.parent)

    def _load(self) -> torch.nn.Module:
        from mlflow.pytorch import load_model

        _, directory = self._model
        own_code.add_current_directory()  # a pickle names its classes
        try:
            model: torch.nn.Module = load_model(str(directory), map_location="cpu")
        except Exception as error:  # unpickling raises whatever the model's code does
            reason = " ".join(str(error).split())
            raise WorkloadError(f"workload {self.ref}: cannot load it: {type(error).__name__}: {reason}") from error
        return model

    def _declared(self) -> list[DeclaredInput]:
        model, _ = self._model
        schema = model.signature.inputs if model.signature else None
        if schema is None or not schema.is_tensor_spec():
            raise WorkloadError(
                f"workload {self.ref} has no signature of tensors: give its inputs, "
                "such as inputs: [{shape: [batch, 3, 224, 224]}]"
            )
        several = len(schema.inputs) > 1
        return [
            DeclaredInput(
                spec.name or (f"input_{position}" if several else "input"),
                spec.type.name,
                [None if size < 0 else size for size in spec.shape],
            )
            for position, spec in enumerate(schema.inputs)
        ]
