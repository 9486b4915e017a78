"""The manifest of an engine package: what it is, what it needs, where it comes from, and the digest of every file."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from mlflow_ngraph import documents, formats
from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.engines.files import is_long, is_plain
from mlflow_ngraph.engines.load_spec import LoadSpec
from mlflow_ngraph.engines.store import BatchSize, Bytes, EngineOrigin, FrozenModel, Stages, StoredEngine
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.text import shortened

FILE = "manifest.json"
SCHEMA_VERSION = 1
DIGEST_FILE = "manifest.json.sha256"
"""Beside the manifest: its own digest, in the form that ``sha256sum --check`` reads."""
SIGNATURE_FILE = "manifest.json.sig"
"""Beside the manifest, where somebody has signed it; see `mlflow_ngraph.engines.signing`."""
BESIDE = (FILE, DIGEST_FILE, SIGNATURE_FILE)
"""What a package has besides the files in its manifest."""
ENGINE_DIRECTORY = "engine"
"""Where the engine's own files lie within a package."""
MAX_BYTES = 16 << 20
"""No manifest is larger; what is, was not written by this package."""

_SHA256 = re.compile("[0-9a-f]{64}")


class _Tensor(FrozenModel):
    """An input or output, as `mlflow_ngraph.workloads.base.TensorSpec` reads it."""

    name: str
    dtype: str = Field(pattern="^(?:bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128))$")
    shape: list[Annotated[int, Field(ge=0, lt=1 << 40, strict=True)] | Literal["batch"]]
    low: int = 0
    high: int = 2


_TENSORS = TypeAdapter(list[_Tensor])


class About(FrozenModel):
    """The model and the compiler."""

    workload: str
    """Canonical reference, such as ``timm:resnet18``."""
    label: str
    family: str
    digest: str | None
    """Identifies the content of the model, weights included."""
    inputs: list[dict[str, Any]]
    """Name, dtype and shape; ``"batch"`` stands for the batch axis."""
    outputs: list[dict[str, Any]]
    reference_by: str | None = None
    """What computed the outputs that the engine was compared with."""
    mixes: str = ""
    """How the samples of a batch influence each other in this model; empty where they do not."""
    compiler: str
    compiler_version: str | None
    precision: str
    """The precision asked for."""
    precision_in_force: str | None
    """The precision that the loaded engine computes in; None where it was never loaded."""
    mode: str
    threads: int | None
    batch_sizes: list[BatchSize] = Field(min_length=1)
    flags: dict[str, FlagValue]
    """Every flag with the value in force."""

    @field_validator("inputs", "outputs")
    @classmethod
    def _are_tensors(cls, tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
        _TENSORS.validate_python(tensors)
        return tensors


class Compilation(FrozenModel):
    """How the engine was made: what another study needs to use it as its own."""

    key: str
    """Equal for engines into whose compilation the same things go."""
    compiled_at: float
    """Unix seconds."""
    stages: Stages
    """Seconds of ``export``, ``convert``, ``tune``, ``compile`` and ``save``, as far as the compiler has them."""
    built_beside: int = Field(ge=0)
    """The most others that were prepared or compiled beside it; 0 where the seconds are its own."""
    flags: dict[str, FlagValue]
    """Values that took effect at compile time."""
    reused: EngineOrigin | None = None
    """Who compiled it, where the study in `Manifest.origin` has only used it."""


class Origin(FrozenModel):
    """Where the engine comes from."""

    study: str
    study_id: str
    lane_id: str
    engine_id: str
    run_id: str | None
    """The lane run on the tracking server, where it was logged to one."""
    source_commit: str | None
    """The commit of the source that the study was started from, where it was under version control."""
    device: str
    fingerprint: dict[str, Any]
    versions: dict[str, str]


class Figures(FrozenModel):
    """What was measured at one batch size."""

    batch: BatchSize
    verdict: str
    reason: str
    noise: str
    """What disturbed the machine meanwhile; empty where it was quiet."""
    baseline: str = EAGER
    """The label of the compiler that speed-ups and other ratios among the metrics refer to."""
    metrics: dict[str, float]
    """By name; those that are no numbers, such as the error of an engine whose outputs are none, stand as text in the file."""


def _writer(document: dict[str, Any]) -> object:
    """The version of mlflow-ngraph that wrote a manifest, of whatever format."""
    origin = document.get("origin")
    versions = origin.get("versions") if isinstance(origin, dict) else None
    return versions.get("mlflow-ngraph") if isinstance(versions, dict) else None


class Manifest(FrozenModel):
    """The content of ``manifest.json``."""

    schema_version: Literal[1] = 1
    about: About
    loading: LoadSpec
    """How the engine is loaded; equal to the file ``loading.json`` in the engine's directory."""
    requires: dict[str, str]
    """What a machine must have to load the engine."""
    files: dict[str, str]
    """sha256 of every other file of the package, by path relative to the manifest."""
    size_bytes: Bytes
    """Of the engine's own files."""
    compilation: Compilation
    origin: Origin
    figures: list[Figures]

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        """Refuse whatever could write to or read from a place outside the package."""
        for path, digest in files.items():
            if path in BESIDE or not is_plain(path):
                raise ValueError(
                    f"the file {shortened(path)} leads out of the package or stands in its manifest's place"
                )
            if is_long(path):
                raise ValueError(f"the file {path[:40]!r}... has a name of {len(path)} characters, which no disk takes")
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"the file {path!r} has no sha256 but {shortened(digest)}")
        if not any(path.startswith(f"{ENGINE_DIRECTORY}/") for path in files):
            raise ValueError(f"there is no file in {ENGINE_DIRECTORY!r}")
        return files

    @classmethod
    def parse(cls, content: bytes, where: str) -> Manifest:
        """Read the text of a manifest.

        Parameters
        ----------
        where : str
            Names the manifest in messages.

        Raises
        ------
        EngineError
            It is no manifest, of another version, or has paths that lead out of the package.
        """
        if len(content) > MAX_BYTES:
            raise EngineError(f"{where} is no manifest: it has {len(content)} bytes")
        try:
            document = documents.from_json(content)
            if isinstance(document, dict):
                other = formats.foreign(document.get("schema_version"), SCHEMA_VERSION, _writer(document))
                if other:
                    raise EngineError(f"{where} {other}")
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part)[:80] for part in first["loc"])
            raise EngineError(f"{where} is not readable: {place + ': ' if place else ''}{first['msg']}") from None
        except ValueError as error:
            raise EngineError(f"{where} is not readable: {error}") from None

    def to_json(self) -> str:
        """The text of the file; equal manifests have equal text."""
        return self.model_dump_json(indent=2) + "\n"

    def engine_files(self) -> dict[str, str]:
        """sha256 of the engine's own files, by path relative to the engine's directory."""
        start = f"{ENGINE_DIRECTORY}/"
        return {path.removeprefix(start): digest for path, digest in self.files.items() if path.startswith(start)}

    def stored(self, tracking_uri: str, model_id: str, run_id: str | None) -> StoredEngine:
        """The engine as this machine keeps it, pulled from a LoggedModel of a tracking server."""
        made = self.compilation
        origin = made.reused or EngineOrigin(
            study=self.origin.study,
            study_id=self.origin.study_id,
            lane_id=self.origin.lane_id,
            engine_id=self.origin.engine_id,
            compiled_at=made.compiled_at,
            machine=str(self.origin.fingerprint.get("digest", "")),
        )
        return StoredEngine(
            key=made.key,
            workload=self.about.workload,
            label=self.about.label,
            compiler=self.about.compiler,
            precision=self.about.precision,
            batch_sizes=tuple(self.about.batch_sizes),
            stages=made.stages,
            built_beside=made.built_beside,
            flags=made.flags,
            requires=self.requires,
            files=self.engine_files(),
            size_bytes=self.size_bytes,
            origin=origin.model_copy(update={"tracking_uri": tracking_uri, "model_id": model_id, "run_id": run_id}),
        )
