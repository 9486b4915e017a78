"""File names of a prepared workload, its record ``materials.json``, and `Source`, from which compilers read them.

A directory holds ``materials.json``, ``weights.safetensors``, the exports (``model.pt2``, ``model.onnx``, or one per
batch size such as ``model-b8.onnx`` where a model cannot be exported for all), and for every batch size the seeded
inputs and the outputs of the baseline (``inputs-b8.npz``, ``reference-b8.npz``), and its outputs for other inputs
(``trials-b8.json``, ``trials-b8.npz``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import NGraphError, UnsupportedError
from mlflow_ngraph.workloads.base import Format, Init, TensorSpec, Workload, WorkloadInfo, WorkloadRef, Wrapper
from mlflow_ngraph.workloads.behaviour import Behaviour
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph.workloads.trial_references import Trials

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

WEIGHTS = "weights.safetensors"
ANY_BATCH = "*"
"""Key of the one export that serves every batch size."""

EXPORTERS: Mapping[Format, tuple[str, ...]] = {
    "module": ("torch",),
    "exported": ("torch",),
    "onnx": ("torch", "onnx", "onnxscript"),
}
"""The packages that decide what a format looks like; `Materials.versions` has them."""

_FILE = "materials.json"
_SCHEMA = 4


@dataclass
class Export:
    """Result of one export."""

    dynamic: bool = True
    """True if one export serves every batch size."""
    files: dict[str, str] = field(default_factory=dict)
    """Path relative to the directory, by batch size, or under ``*`` for every batch size."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of the export, from the live module on, by the same keys."""
    stopped_s: dict[str, list[float]] = field(default_factory=dict)
    """How long the process stood still meanwhile, by the same keys."""
    static_because: str | None = None
    """Reason why there is no export with a dynamic batch size."""
    error: str | None = None
    """Reason why there is no export at all, in the exporter's own words."""

    def key(self, batch: int | None) -> str:
        """Key of the export for a batch size; None is the one for all."""
        return ANY_BATCH if self.dynamic or batch is None else str(batch)


@dataclass
class Materials:
    """Content of ``materials.json``."""

    ref: WorkloadRef
    init: Init
    seed: int
    info: WorkloadInfo
    digest: str
    """Identifies what the model computes: see `mlflow_ngraph.workloads.content`."""
    reference_by: str
    """Runtime of the reference outputs."""
    versions: dict[str, str]
    wrapped: list[Wrapper] = field(default_factory=list)
    """Wrappers that the model needs, from the inside out."""
    behaviour: Behaviour = field(default_factory=Behaviour)
    outputs: tuple[TensorSpec, ...] = ()
    batch_sizes: list[int] = field(default_factory=list)
    formats: dict[Format, Export] = field(default_factory=dict)

    @staticmethod
    def exist(directory: Path) -> bool:
        return (directory / _FILE).is_file()

    def write(self, directory: Path) -> None:
        """Write the file atomically."""
        content = {"schema": _SCHEMA, **asdict(self)}
        temporary = directory / f"{_FILE}.tmp"
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(directory / _FILE)

    @classmethod
    def read(cls, directory: Path) -> Materials:
        """Read the file. Raises `NGraphError` if it is missing, damaged or of another version."""
        path = directory / _FILE
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NGraphError(f"no readable materials in {directory}: {error}: prepare the workload first") from error
        if content.pop("schema", None) != _SCHEMA:
            raise NGraphError(f"{path} comes from another version of this package: prepare the workload again")
        return cls(**{**content, **_typed(content)})


def _typed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Restore types that JSON does not keep."""
    return {
        "ref": WorkloadRef(**content["ref"]),
        "init": Init(**content["init"]),
        "info": WorkloadInfo.from_dict(content["info"]),
        "behaviour": Behaviour(**content["behaviour"]),
        "outputs": tuple(TensorSpec.from_dict(spec) for spec in content["outputs"]),
        "formats": {name: Export(**export) for name, export in content["formats"].items()},
    }


class Source:
    """A prepared workload as compilers see it. Imports torch for `module` only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.materials = Materials.read(directory)

    @property
    def info(self) -> WorkloadInfo:
        return self.materials.info

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs, in the order of every format and with the names of the ONNX export."""
        return self.materials.info.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Flattened outputs, in the order of every format."""
        return self.materials.outputs

    @property
    def digest(self) -> str:
        """Digest of the model's function: its inputs, weights, and files or code."""
        return self.materials.digest

    def dynamic(self, kind: Format) -> bool:
        """True if one export of this format serves every batch size."""
        return self._export(kind).dynamic

    def export_seconds(self, kind: Format, batch: int | None = None) -> float:
        """Duration of the export for a batch size, from the live module on."""
        export = self._export(kind)
        return export.seconds[export.key(batch)]

    def export_stops(self, kind: Format, batch: int | None = None) -> list[float]:
        """How long the process stood still within `export_seconds`."""
        export = self._export(kind)
        return export.stopped_s.get(export.key(batch), [])

    def exported(self, batch: int | None = None) -> Path:
        """The ``torch.export`` program for a batch size; None asks for a dynamic one.

        Raises `UnsupportedError` if the exporter failed, with its own reason.
        """
        return self._file("exported", batch)

    def onnx(self, batch: int | None = None) -> Path:
        """ONNX file for a batch size; None asks for a dynamic one.

        Raises `UnsupportedError` if the exporter failed, with its own reason.
        """
        return self._file("onnx", batch)

    def example(self, batch: int) -> list[NDArray[Any]]:
        """Seeded random inputs at a batch size."""
        return self._arrays("inputs", batch)

    def reference(self, batch: int) -> list[NDArray[Any]]:
        """The baseline's flattened outputs in fp32 for `example`."""
        return self._arrays("reference", batch)

    def exact(self, batch: int) -> list[NDArray[Any]] | None:
        """Outputs for `example` in double precision; None where the model has no such form."""
        return self._arrays("exact", batch) if (self.directory / arrays_file("exact", batch)).is_file() else None

    def trials(self, batch: int, *, facts_only: bool = False) -> Trials:
        """Further inputs to compare engines on, at a batch size; none for a model that is no function.

        ``facts_only`` leaves out the outputs, which take memory.
        """
        self._require(batch)
        facts = self.directory / trials_file(batch)
        if not facts.is_file():
            return Trials(self.materials.seed)
        return Trials.read(facts, None if facts_only else self.directory / arrays_file("trials", batch))

    def module(self) -> torch.nn.Module:
        """Rebuild the live model in evaluation mode with the prepared weights.

        Raises `UnsupportedError` if PyTorch cannot express the workload.
        """
        self._export("module")
        workload = create(self.materials.ref, self.materials.init).localise(self.directory)
        return rebuild(workload, self.materials.wrapped, self.directory)

    def _file(self, kind: Format, batch: int | None) -> Path:
        export = self._export(kind)
        name = export.files.get(export.key(batch))
        if name is not None:
            return self.directory / name
        if batch is None:
            raise UnsupportedError(f"{self.info.label}: no dynamic batch size: {export.static_because}")
        raise NGraphError(f"{self.info.label}: batch size {batch} is not prepared")

    def _export(self, kind: Format) -> Export:
        export = self.materials.formats.get(kind)
        if export is None:
            raise NGraphError(f"{self.info.label}: format {kind!r} is not prepared")
        if export.error is not None:
            raise UnsupportedError(f"{self.info.label}: {export.error}")
        return export

    def _arrays(self, kind: str, batch: int) -> list[NDArray[Any]]:
        self._require(batch)
        with np.load(self.directory / arrays_file(kind, batch)) as content:
            return [content[f"arr_{index}"] for index in range(len(content.files))]

    def _require(self, batch: int) -> None:
        """Check that inputs and outputs of a batch size exist."""
        only = self.info.fixed_batch
        if only is not None and batch != only:
            raise UnsupportedError(f"{self.info.label} accepts batch size {only} only, not {batch}")
        if batch not in self.materials.batch_sizes:
            raise NGraphError(f"{self.info.label}: batch size {batch} is not prepared")


def rebuild(workload: Workload, wrapped: Sequence[Wrapper], directory: Path) -> torch.nn.Module:
    """Rebuild a model in evaluation mode with the weights in ``directory``."""
    from mlflow_ngraph.workloads.calling import wrap
    from mlflow_ngraph.workloads.evaluation import evaluate
    from mlflow_ngraph.workloads.weights import load

    module = workload.skeleton()
    load(module, directory / WEIGHTS)
    return evaluate(wrap(module, wrapped), str(workload.ref))


def trials_file(batch: int) -> str:
    """Name of the file that lists the trials."""
    return f"trials-b{batch}.json"


def arrays_file(kind: str, batch: int) -> str:
    """Name of a file of arrays, such as ``reference-b8.npz``; the arrays are called arr_0, arr_1, ..."""
    return f"{kind}-b{batch}.npz"
