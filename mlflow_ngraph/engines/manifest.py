"""Manifest of an engine package (model and parser): specification, compilation, origin, figures, file digests."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from mlflow_ngraph import documents, formats
from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.compilers.spec import BatchSize, EngineSpec, FrozenModel
from mlflow_ngraph.engines.files import is_long, is_plain
from mlflow_ngraph.entry_points import ENGINE_PLUGINS, module_of
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph.text import shortened

FILE = "manifest.json"
SCHEMA_VERSION = 2
DIGEST_FILE = "manifest.json.sha256"
"""Beside the manifest: its own digest, in the form that ``sha256sum --check`` reads."""
SIGNATURE_FILE = "manifest.json.sig"
"""Beside the manifest, where somebody has signed it; see `mlflow_ngraph.engines.signing`."""
BESIDE = (FILE, DIGEST_FILE, SIGNATURE_FILE)
"""Files of a package that its manifest does not list."""
ENGINE_DIRECTORY = "engine"
"""Directory of the engine's own files within a package."""
_WITHIN = f"{ENGINE_DIRECTORY}/"
_OF_MLFLOW = re.compile(
    r"MLmodel|requirements\.txt|conda\.yaml|python_env\.yaml|README\.md|registered_model_meta"
    rf"|wheels/({'|'.join(map(module_of, ('mlflow-ngraph', *ENGINE_PLUGINS)))})-[\w.]+-\w+-py3-none-any\.whl",
    re.ASCII,
)
MAX_BYTES = 16 << 20
"""No manifest is larger; what is, was not written by this package."""

_SHA256 = re.compile("[0-9a-f]{64}")


Bytes = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


class Compiled(FrozenModel):
    """Duration, size and memory of a compilation, as in journals and manifests."""

    key: str
    """Equal for engines into whose compilation the same things go; see `mlflow_ngraph.engines.key`."""
    stages: dict[str, Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]]
    """Seconds of ``export``, ``convert``, ``tune``, ``compile`` and ``save``, as far as the compiler has them; empty where a
    process stood still meanwhile."""
    built_beside: Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]
    """The most other workloads and engines that were prepared or compiled at the same time; 0 where nothing was, so that
    the seconds are its own."""

    @property
    def seconds(self) -> float | None:
        """Seconds of all stages; None where they are unknown."""
        return sum(self.stages.values()) if self.stages else None


class Maker(FrozenModel):
    """Study that compiled an engine."""

    study: str
    study_id: str
    lane_id: str
    engine_id: str
    compiled_at: float
    """Unix seconds."""
    machine: str
    """Digest of the machine's hardware."""
    tracking_uri: str | None = None
    """The tracking server that the engine was pulled from, without credentials; None where it never left."""
    model_id: str | None = None
    run_id: str | None = None


class Origin(FrozenModel):
    """Study that has the engine, and the machine that it ran on."""

    study: str
    study_id: str
    label: str
    """Name of the workload in the study."""
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
    """Measured figures at one batch size."""

    batch: BatchSize
    verdict: str
    reason: str
    noise: str
    """Disturbances of the machine meanwhile; empty where it was quiet."""
    baseline: str = EAGER
    """The label of the compiler that speed-ups and other ratios among the metrics refer to."""
    metrics: dict[str, float]
    """By name; those that are no numbers, such as the error of an engine whose outputs are none, stand as text in the file."""


def is_of_mlflow(path: str) -> bool:
    """True if a package may have a file of this name outside of its engine's directory."""
    return _OF_MLFLOW.fullmatch(path) is not None


def _writer(document: dict[str, Any]) -> object:
    """Version of mlflow-ngraph that wrote a manifest of any format."""
    origin = document.get("origin")
    versions = origin.get("versions") if isinstance(origin, dict) else None
    return versions.get("mlflow-ngraph") if isinstance(versions, dict) else None


class Manifest(FrozenModel):
    """The content of ``manifest.json``."""

    schema_version: Literal[2] = 2
    spec: EngineSpec
    """Equal to the file in the engine's directory; `package.check_files` compares them."""
    compiled: Compiled
    made_by: Maker
    """Another study than that of `origin`, where that one has only used the engine."""
    precision_in_force: str | None
    """The precision that the loaded engine computes in; None where it was never loaded."""
    flags: dict[str, FlagValue]
    """Every flag with the value in force."""
    size_bytes: Bytes
    """Size of the engine's own files."""
    files: dict[str, str]
    """sha256 of every other file of the package as it was logged, by path relative to the manifest. What a package has
    outside of the engine's directory may have been written anew since."""
    origin: Origin
    figures: list[Figures]

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        """Refuse paths that lead out of the package."""
        for path, digest in files.items():
            if path in BESIDE or not is_plain(path):
                raise ValueError(
                    f"the file {shortened(path)} leads out of the package or stands in its manifest's place"
                )
            if is_long(path):
                raise ValueError(f"the file {path[:40]!r}... has a name of {len(path)} characters, which no disk takes")
            if not path.startswith(_WITHIN) and not is_of_mlflow(path):
                raise ValueError(f"the file {shortened(path)} is neither of an engine nor of a model of MLflow")
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"the file {path!r} has no sha256 but {shortened(digest)}")
        if not any(path.startswith(_WITHIN) for path in files):
            raise ValueError(f"there is no file in {ENGINE_DIRECTORY!r}")
        return files

    @classmethod
    def parse(cls, content: bytes, where: str) -> Manifest:
        """Parse a manifest.

        Raises `EngineError` if it is invalid, of another version, or has paths that lead out of the package.
        """
        if len(content) > MAX_BYTES:
            raise EngineError(f"{where} is no manifest: it has {len(content)} bytes")
        try:
            document = documents.from_json(content)
            if isinstance(document, dict):
                other = formats.version_mismatch(document.get("schema_version"), SCHEMA_VERSION, _writer(document))
                if other:
                    raise EngineError(f"{where} {other}; or compile the engine again")
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part)[:80] for part in first["loc"])
            raise EngineError(f"{where} is not readable: {place + ': ' if place else ''}{first['msg']}") from None
        except ValueError as error:
            raise EngineError(f"{where} is not readable: {error}") from None

    def to_json(self) -> str:
        """Canonical text of the file."""
        return self.model_dump_json(indent=2) + "\n"

    @property
    def compiler_version(self) -> str | None:
        """Version of the compiler on the machine of `origin`."""
        return self.origin.versions.get(self.spec.compiler)

    @property
    def precision(self) -> str:
        """Effective precision, or the requested one while that is unknown."""
        return self.precision_in_force or self.spec.target.precision

    @property
    def shown(self) -> str:
        """Describe the engine in one line."""
        sizes = ", ".join(map(str, self.spec.batch_sizes))
        return f"{self.spec.workload} by {self.spec.compiler}, {self.spec.target.precision}, batch {sizes}"

    def engine_files(self) -> dict[str, str]:
        """Digests of the engine's own files, by path relative to the engine's directory."""
        return {path.removeprefix(_WITHIN): digest for path, digest in self.files.items() if path.startswith(_WITHIN)}

    def pulled(self, tracking_uri: str, model_id: str, run_id: str | None) -> Manifest:
        """Manifest of the engine's own files alone, for a LoggedModel of a tracking server."""
        own = {path: digest for path, digest in self.files.items() if path.startswith(_WITHIN)}
        maker = self.made_by.model_copy(update={"tracking_uri": tracking_uri, "model_id": model_id, "run_id": run_id})
        return self.model_copy(update={"files": own, "made_by": maker, "figures": []})
