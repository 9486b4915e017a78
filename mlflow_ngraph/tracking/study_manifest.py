"""What the manifest of an engine says that a study has built."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_ngraph.engines.load_spec import LoadSpec
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, About, Compilation, Figures, Manifest, Origin
from mlflow_ngraph.engines.store import EngineOrigin
from mlflow_ngraph.execute.record import EngineRecord, LaneRecord, StudyRecord


def build(
    record: StudyRecord,
    engine: EngineRecord,
    loading: LoadSpec,
    others: Mapping[str, str],
    *,
    run_id: str | None = None,
    source_commit: str | None = None,
) -> Manifest:
    """The manifest of an engine of a study.

    Parameters
    ----------
    others : Mapping[str, str]
        Sha256 of the package's files outside the engine's directory, by path.
    """
    lane = record.lanes[engine.lane]
    reused = EngineOrigin.model_validate(engine.reused) if engine.reused is not None else None
    own = {f"{ENGINE_DIRECTORY}/{path}": digest for path, digest in engine.files.items()}
    return Manifest(
        about=about(record, engine),
        loading=loading,
        requires=dict(engine.requires),
        files=dict(sorted({**own, **others}.items())),
        size_bytes=engine.size_bytes,
        compilation=Compilation(
            key=engine.key,
            compiled_at=engine.at if reused is None else reused.compiled_at,
            stages=dict(engine.stages),
            built_beside=engine.built_beside,
            flags=dict(engine.flags),
            reused=reused,
        ),
        origin=Origin(
            study=record.name,
            study_id=record.id,
            lane_id=engine.lane,
            engine_id=engine.id,
            run_id=run_id,
            source_commit=source_commit,
            device=record.device,
            fingerprint=dict(record.fingerprint),
            versions=dict(record.versions),
        ),
        figures=_figures(lane, engine, record.baseline),
    )


def _figures(lane: LaneRecord, engine: EngineRecord, baseline: str) -> list[Figures]:
    return [
        Figures(
            batch=cell.batch,
            verdict=str(cell.verdict),
            reason=cell.reason,
            noise=cell.noise,
            baseline=baseline,
            metrics=cell.metrics,
        )
        for batch, cell in sorted(lane.cells.items())
        if batch in engine.batch_sizes
    ]


def about(record: StudyRecord, engine: EngineRecord) -> About:
    """What an engine of a study is."""
    lane = record.lanes[engine.lane]
    workload = record.workloads.get(lane.lane.workload, {})
    cells = [lane.cells[batch] for batch in engine.batch_sizes if batch in lane.cells]
    return About(
        workload=lane.lane.workload,
        label=lane.lane.label,
        family=lane.lane.family,
        digest=workload.get("digest"),
        inputs=list(workload.get("info", {}).get("inputs", ())),
        outputs=list(workload.get("outputs", ())),
        reference_by=record.reference_by(lane.lane.workload),
        mixes=workload.get("behaviour", {}).get("mixes", ""),
        compiler=lane.lane.compiler,
        compiler_version=record.versions.get(lane.lane.compiler),
        precision=lane.lane.precision,
        precision_in_force=next((cell.precision_in_force for cell in cells if cell.precision_in_force), None),
        mode=lane.lane.mode,
        threads=lane.lane.threads,
        batch_sizes=list(engine.batch_sizes),
        flags={name: value for batch in engine.batch_sizes for name, value in lane.flags_in_force(batch).items()},
    )
