"""The manifest of an engine package: what it is, what it needs, where it comes from, and the digest of every file."""

from __future__ import annotations

from typing import Any, Literal

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.engines.files import escapes
from mlflow_ngraph.engines.store import EngineOrigin, Part, StoredEngine
from mlflow_ngraph.execute.record import EngineRecord, LaneRecord, StudyRecord

ENGINE_DIRECTORY = "engine"
"""Where the compiler's own files lie within a package."""


class About(Part):
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
    compiler: str
    compiler_version: str | None
    precision: str
    """The precision asked for."""
    precision_in_force: str | None
    """The precision that the loaded engine computes in; None where it was never loaded."""
    mode: str
    threads: int | None
    batch_sizes: list[int]
    flags: dict[str, FlagValue]
    """Every flag with the value in force. Give them again when the engine is loaded."""


class Compilation(Part):
    """How the engine was made: what another study needs to use it as its own."""

    key: str
    """Equal for engines into whose compilation the same things go."""
    compiled_at: float
    """Unix seconds."""
    stages: dict[str, float]
    """Seconds of ``export``, ``convert``, ``tune``, ``compile`` and ``save``, as far as the compiler has them."""
    flags: dict[str, FlagValue]
    """Values that took effect at compile time."""
    reused: EngineOrigin | None = None
    """Who compiled it, where the study in `Manifest.origin` has only used it."""


class Origin(Part):
    """Where the engine comes from."""

    study: str
    study_id: str
    lane_id: str
    engine_id: str
    device: str
    fingerprint: dict[str, Any]
    versions: dict[str, str]


class Figures(Part):
    """What was measured at one batch size."""

    batch: int
    verdict: str
    reason: str
    metrics: dict[str, float]


class Manifest(Part):
    """The content of ``manifest.json``."""

    schema_version: Literal[1] = 1
    about: About
    requires: dict[str, str]
    """What a machine must have to load the engine."""
    files: dict[str, str]
    """sha256 of every other file of the package, by path relative to the manifest."""
    size_bytes: int
    compilation: Compilation
    origin: Origin
    figures: list[Figures]

    def to_json(self) -> str:
        """The text of the file; equal manifests have equal text."""
        return self.model_dump_json(indent=2) + "\n"

    def stored(self, tracking_uri: str, model_id: str, run_id: str | None) -> StoredEngine:
        """The engine as this machine keeps it, pulled from a LoggedModel of a tracking server.

        Raises
        ------
        ValueError: a file of the package lies outside the engine's directory.
        """
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
            flags=made.flags,
            requires=self.requires,
            files={_within(path): digest for path, digest in self.files.items()},
            size_bytes=self.size_bytes,
            origin=origin.model_copy(update={"tracking_uri": tracking_uri, "model_id": model_id, "run_id": run_id}),
        )


def _within(path: str) -> str:
    """The path relative to the engine's directory of a path of the package."""
    directory, _, rest = path.partition("/")
    if directory != ENGINE_DIRECTORY or escapes(rest):
        raise ValueError(f"the package has the file {path!r}, which is not in its directory {ENGINE_DIRECTORY!r}")
    return rest


def build(record: StudyRecord, lane_id: str, engine: EngineRecord) -> Manifest:
    """The manifest of an engine of a study."""
    lane = record.lanes[lane_id]
    reused = EngineOrigin.model_validate(engine.reused) if engine.reused is not None else None
    return Manifest(
        about=_about(record, lane, engine),
        requires=dict(engine.requires),
        files={f"{ENGINE_DIRECTORY}/{path}": digest for path, digest in sorted(engine.files.items())},
        size_bytes=engine.size_bytes,
        compilation=Compilation(
            key=engine.key,
            compiled_at=engine.at if reused is None else reused.compiled_at,
            stages=dict(engine.stages),
            flags=dict(engine.flags),
            reused=reused,
        ),
        origin=Origin(
            study=record.name,
            study_id=record.id,
            lane_id=lane_id,
            engine_id=engine.id,
            device=record.device,
            fingerprint=dict(record.fingerprint),
            versions=dict(record.versions),
        ),
        figures=[
            Figures(batch=cell.batch, verdict=str(cell.verdict), reason=cell.reason, metrics=cell.metrics)
            for batch, cell in sorted(lane.cells.items())
            if batch in engine.batch_sizes
        ],
    )


def _about(record: StudyRecord, lane: LaneRecord, engine: EngineRecord) -> About:
    workload = record.workloads.get(lane.lane.workload, {})
    cells = [lane.cells[batch] for batch in engine.batch_sizes if batch in lane.cells]
    in_force = {name: value for cell in cells for name, value in cell.flags.items()}
    return About(
        workload=lane.lane.workload,
        label=lane.lane.label,
        family=lane.lane.family,
        digest=workload.get("digest"),
        inputs=list(workload.get("info", {}).get("inputs", ())),
        outputs=list(workload.get("outputs", ())),
        compiler=lane.lane.compiler,
        compiler_version=record.versions.get(lane.lane.compiler),
        precision=lane.lane.precision,
        precision_in_force=next((cell.precision_in_force for cell in cells if cell.precision_in_force), None),
        mode=lane.lane.mode,
        threads=lane.lane.threads,
        batch_sizes=list(engine.batch_sizes),
        flags={**lane.lane.flags, **engine.flags, **in_force},
    )
