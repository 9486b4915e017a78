"""Log engines as LoggedModels: find or create the model, upload the package, write tags, check the stored files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines import manifest
from mlflow_ngraph.engines.files import digest_files, link_files
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.model_files import CONDA, MODEL, PYTHON_ENV, REQUIREMENTS
from mlflow_ngraph.engines.package import write_manifest
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.execute import packaging
from mlflow_ngraph.execute.record import EngineRecord, LaneRecord, StudyRecord
from mlflow_ngraph.tracking import download, files, manifests, model_card, model_files, schema
from mlflow_ngraph.tracking.connection import every, require_id, unless_gone
from mlflow_ngraph.tracking.content import Content, engine_digest, plain, worst
from mlflow_ngraph.tracking.schema import Kind, Param, Tag
from mlflow_ngraph.tracking.study_run import StudyRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run


_OTHERS = (manifest.FILE, manifest.DIGEST_FILE, model_card.FILE, MODEL, CONDA, PYTHON_ENV, REQUIREMENTS)
"""Files of a package beside those of the engine and the wheel."""
_COMMIT = "mlflow.source.git.commit"


@dataclass(frozen=True)
class ModelSlot:
    """A LoggedModel, and its missing parts."""

    model_id: str
    ready: bool
    """True if its files are complete."""
    pruned: bool
    """True if somebody removed them."""
    points: frozenset[tuple[str, int]]
    """Names and steps of the metrics that it has."""
    intact: bool = True
    """True if its tags name the record, the lane and the engine."""


def search(client: MlflowClient, study: StudyRun, lane_id: str | None = None) -> list[LoggedModel]:
    """The engines of a record, or those of one lane."""
    query = f"tags.`{Tag.RECORD}` = '{study.key}'"
    if lane_id is not None:
        query += f" AND tags.`{Tag.LANE_ID}` = '{lane_id}'"
    return every(lambda token: client.search_logged_models([study.experiment_id], query, page_token=token))


def find(client: MlflowClient, study: StudyRun, run: Run, lane: LaneRecord) -> dict[str, ModelSlot]:
    """The LoggedModel of each engine of a lane run."""
    listed = search(client, study, lane.lane.id)
    slots = {}
    for engine_id, model in of_lane(client, listed, run, lane, lane.models).items():
        names = {Tag.RECORD: study.key, Tag.LANE_ID: lane.lane.id, Tag.ENGINE_ID: engine_id}
        intact = names.items() <= model.tags.items()
        slot = slot_of(client, model.model_id)
        # Whoever has changed these may have changed the digest of the manifest as well.
        slots[engine_id] = replace(slot, ready=slot.ready and intact, intact=intact)
    return slots


def of_lane(
    client: MlflowClient, listed: Sequence[LoggedModel], run: Run, lane: LaneRecord, known: Mapping[str, str]
) -> dict[str, LoggedModel]:
    """The LoggedModel of each engine of a lane among those that are ``listed``.

    That is the ``known`` one, by engine, whatever its tags say by now, as long as its source is the lane run. Else it is one
    that says of itself to have the files of the engine, or has none yet.
    """
    found: dict[str, LoggedModel] = {}
    for engine in lane.engines:
        if (model := _kept(client, known.get(engine.id), run)) is not None:
            found[engine.id] = model
            continue
        fitting = [
            model
            for model in listed
            if model.source_run_id == run.info.run_id and model.tags.get(Tag.ENGINE_ID) == engine.id
        ]
        # A copy is younger than what it was made from.
        for model in sorted(fitting, key=lambda model: (not is_stored(model), model.creation_timestamp)):
            if not is_stored(model) or Tag.PRUNED in model.tags or _has_files_of(model, engine, client.tracking_uri):
                found[engine.id] = model
                break
    return found


def _kept(client: MlflowClient, model_id: str | None, run: Run) -> LoggedModel | None:
    """A LoggedModel that a lane run was given, unless it is gone."""
    model = None
    if model_id is not None:
        with unless_gone():
            model = client.get_logged_model(model_id)
    return model if model is not None and model.source_run_id == run.info.run_id else None


def _has_files_of(model: LoggedModel, engine: EngineRecord, tracking_uri: str) -> bool:
    """Test if the manifest of a LoggedModel names the files of an engine."""
    try:
        return manifests.of(download.of_model(model, tracking_uri)).engine_files() == engine.files
    except (EngineError, TrackingError):
        return False


def create(client: MlflowClient, run: Run, record: StudyRecord, engine: EngineRecord, content: Content) -> ModelSlot:
    """A new LoggedModel for an engine."""
    created = client.create_logged_model(
        run.info.experiment_id,
        name=_name(record, engine),
        source_run_id=run.info.run_id,
        model_type=schema.MODEL_TYPE,
        params=_params(record, engine, content),
        tags=_tags(record, engine, content),
    )
    require_id(created.model_id)
    return ModelSlot(created.model_id, ready=False, pruned=False, points=frozenset())


def write_tags(
    client: MlflowClient, slot: ModelSlot, record: StudyRecord, engine: EngineRecord, content: Content
) -> None:
    """Write the tags of a LoggedModel again."""
    client.set_logged_model_tags(slot.model_id, _tags(record, engine, content))


def slot_of(client: MlflowClient, model_id: str) -> ModelSlot:
    """A LoggedModel as it is now."""
    model = client.get_logged_model(model_id)
    points = frozenset((metric.key, metric.step) for metric in model.metrics or ())
    return ModelSlot(model_id, is_stored(model), Tag.PRUNED in model.tags, points)


def is_stored(model: LoggedModel) -> bool:
    """Test if an engine has its files, as far as the server says, or was pruned."""
    return Tag.PRUNED in model.tags or (str(model.status) == "READY" and Tag.MANIFEST_SHA256 in model.tags)


def lacks_files(client: MlflowClient, slot: ModelSlot, engine: EngineRecord) -> bool:
    """Test if files of an engine are not listed, or have another size together."""
    own = [f"{manifest.ENGINE_DIRECTORY}/{path}" for path in engine.files]
    sizes = files.listed([*own, *_OTHERS], partial(client.list_logged_model_artifacts, slot.model_id))
    total = sum(sizes[path] or 0 for path in own)
    return None in sizes.values() or (files.UNKNOWN not in sizes.values() and total != engine.size_bytes)


def log_engine(
    client: MlflowClient, slot: ModelSlot, run: Run, record: StudyRecord, engine: EngineRecord, source: Path
) -> None:
    """Upload an engine as a package that is a model of MLflow, and finish its LoggedModel.

    The manifest goes last: where it is, all is. Then its digest goes into a tag, where it cannot be changed together
    with the files.
    """
    from mlflow.models import Model

    def store(directory: Path) -> None:
        with files.placed(slot.model_id):
            client.log_model_artifacts(slot.model_id, str(directory))
        files.require_stored(directory, partial(client.list_logged_model_artifacts, slot.model_id))

    spec, lane = EngineSpec.read(source), record.lanes[engine.lane]
    text = model_card.card(record, engine, spec, slot.model_id)
    # Beside the engine, where its files can have second names.
    with tempfile.TemporaryDirectory(prefix=".upload-", dir=source.parent) as temporary:
        directory = Path(temporary)
        (directory / model_card.FILE).write_text(text, encoding="utf-8")
        described = Model(
            artifact_path=client.get_logged_model(slot.model_id).artifact_location,
            run_id=run.info.run_id,
            model_uuid=slot.model_id,
            model_id=slot.model_id,
            # An engine that is stored again has the same manifest.
            utc_time_created=f"{datetime.fromtimestamp(engine.at, timezone.utc):%F %T.%f}",
        )
        version = record.versions.get(spec.compiler)
        model_files.write(directory, spec, version, described, size_bytes=engine.size_bytes)
        others = digest_files(directory)
        # MLflow 3.15 cannot be told where files go: they lie in a directory of that name instead.
        link_files(source, directory / manifest.ENGINE_DIRECTORY, engine.files)
        store(directory)
        shutil.rmtree(directory)
        directory.mkdir()
        commit = run.data.tags.get(_COMMIT)
        made = packaging.manifest(record, lane, engine, spec, others, run_id=run.info.run_id, source_commit=commit)
        digest = write_manifest(directory, made)
        store(directory)
    tags = {Tag.MANIFEST_SHA256: digest, Tag.NOTE: schema.cut(text, schema.MAX_TAG)}
    client.set_logged_model_tags(slot.model_id, tags)
    client.finalize_logged_model(slot.model_id, "READY")


def package_tags(package: Manifest, digest: str) -> dict[str, str]:
    """Tags of a LoggedModel for a package whose study is not on this server."""
    spec, origin = package.spec, package.origin
    tags = {
        Tag.SCHEMA: schema.SCHEMA_VERSION,
        Tag.KIND: Kind.ENGINE,
        Tag.WORKLOAD: spec.workload,
        Tag.LABEL: origin.label,
        Tag.FAMILY: spec.family,
        Tag.COMPILER: spec.compiler,
        Tag.PRECISION: spec.target.precision,
        Tag.MODE: spec.target.mode,
        Tag.DEVICE: origin.device,
        Tag.FINGERPRINT: str(origin.fingerprint.get("digest", "")),
        Tag.ENGINE_KEY: package.compiled.key,
        Tag.BATCH_SIZES: ",".join(map(str, spec.batch_sizes)),
        Tag.MANIFEST_SHA256: digest,
    }
    return {name: schema.cut(value, schema.MAX_TAG) for name, value in tags.items() if value}


def _name(record: StudyRecord, engine: EngineRecord) -> str:
    lane = record.lanes[engine.lane].lane
    batches = "-".join(map(str, engine.batch_sizes))
    return schema.model_name(f"{lane.label}-{lane.compiler_label}-{lane.precision}-b{batches}")


def _params(record: StudyRecord, engine: EngineRecord, content: Content) -> dict[str, str]:
    """The lane's params, with the flags of this engine alone."""
    flags = {
        schema.metric_name(Param.FLAG + name): schema.cut(plain(value), schema.MAX_PARAM)
        for name, value in record.lanes[engine.lane].flags_of(engine).items()
    }
    return {**content.params, **flags, Param.BATCH_SIZES: ",".join(map(str, engine.batch_sizes))}


def _tags(record: StudyRecord, engine: EngineRecord, content: Content) -> dict[str, str]:
    """Categories of the lane, and identity of the engine."""
    of_run = (
        Tag.NOTE, Tag.REASON, Tag.COMPLETE, Tag.CELLS, Tag.VERDICTS, Tag.ENGINES, Tag.ENGINE_REUSED, Tag.COLOUR,
    )  # fmt: skip
    cells = record.lanes[engine.lane].cells
    return {
        **{name: value for name, value in content.tags.items() if name not in of_run},
        Tag.KIND: Kind.ENGINE,
        Tag.ENGINE_ID: engine.id,
        Tag.ENGINE_KEY: engine.key,
        **(
            {Tag.ENGINE_REUSED: json.dumps(engine.reused.model_dump(exclude_none=True))}
            if engine.reused is not None
            else {}
        ),
        Tag.SHA256: engine_digest(engine.files),
        Tag.BATCH_SIZES: ",".join(map(str, engine.batch_sizes)),
        Tag.VERDICT: str(worst(cells[batch] for batch in engine.batch_sizes if batch in cells)),
    }
