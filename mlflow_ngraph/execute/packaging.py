"""Build the manifest of an engine from the record of its study."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, Compiled, Figures, Maker, Manifest, Origin
from mlflow_ngraph.execute.record import EngineRecord, LaneRecord, StudyRecord


def manifest(
    study: StudyRecord,
    lane: LaneRecord,
    engine: EngineRecord,
    spec: EngineSpec,
    others: Mapping[str, str] | None = None,
    *,
    run_id: str | None = None,
    source_commit: str | None = None,
) -> Manifest:
    """Build the manifest of an engine.

    ``others`` are digests of the package's files outside the engine's directory, by path. ``run_id`` is the lane run on
    the tracking server, and ``source_commit`` that of the source that the study was started from.
    """
    own = {f"{ENGINE_DIRECTORY}/{path}": digest for path, digest in engine.files.items()}
    made_by = engine.reused or Maker(
        study=study.name,
        study_id=study.id,
        lane_id=engine.lane,
        engine_id=engine.id,
        compiled_at=engine.at,
        machine=str(study.fingerprint.get("digest", "")),
    )
    return Manifest(
        spec=spec,
        compiled=Compiled.model_validate(engine, from_attributes=True),
        made_by=made_by,
        size_bytes=engine.size_bytes,
        precision_in_force=lane.precision_of(engine),
        flags=lane.flags_of(engine),
        files=dict(sorted({**own, **(others or {})}.items())),
        origin=Origin(
            study=study.name,
            study_id=study.id,
            label=lane.lane.label,
            lane_id=engine.lane,
            engine_id=engine.id,
            run_id=run_id,
            source_commit=source_commit,
            device=study.device,
            fingerprint=dict(study.fingerprint),
            versions=dict(study.versions),
        ),
        figures=[
            Figures(
                batch=cell.batch,
                verdict=str(cell.verdict),
                reason=cell.reason,
                noise=cell.noise,
                baseline=study.baseline,
                metrics=cell.metrics,
            )
            for batch, cell in sorted(lane.cells.items())
            if batch in engine.batch_sizes
        ],
    )
