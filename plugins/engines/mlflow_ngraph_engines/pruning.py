"""Prune engines by rule, with their files.

MLflow deletes a LoggedModel and leaves its files. Here an engine is marked first, which prevents its use. Then the files
that its manifest names are deleted, then its LoggedModel. Interrupted removals are finished first next time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pandas as pd

from mlflow_ngraph import addresses
from mlflow_ngraph.engines.files import irregular_entry, remove_files
from mlflow_ngraph.engines.manifest import BESIDE
from mlflow_ngraph.engines.manifest import FILE as MANIFEST
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.text import harmless
from mlflow_ngraph.tracking import artifact_stores, connection, download, manifests
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_engines.inventory import AT_ONCE, ListedEngine

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import FileInfo
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

GROUP = ("workload", "device", "batch")
"""Columns that define a ranking."""
_VERSIONS = "mlflow.modelVersions"


@dataclass(frozen=True)
class Rules:
    """Rules for engines to keep. Other engines are pruned if old enough."""

    keep_best: int | None = None
    """Number to keep per workload, device and batch size; only ``ok`` cells count."""
    keep_newest: int | None = None
    older_than_s: float | None = None
    """Minimum age of pruned engines."""
    metric: str = "throughput"
    registered: bool = False
    """Prune engines with a registered version, unless an alias points at it."""
    aliased: bool = False
    """Prune engines with an alias, too."""

    def superfluous(self, engines: Sequence[ListedEngine]) -> list[ListedEngine]:
        """Engines to prune, the oldest first."""
        kept = {*self._best(engines), *self._newest(engines)}
        superfluous = [
            engine
            for engine in engines
            if engine.interrupted or (engine.model_id not in kept and self._old(engine) and not self._protected(engine))
        ]
        return sorted(superfluous, key=lambda engine: (not engine.interrupted, -engine.age_s))

    def _protected(self, engine: ListedEngine) -> bool:
        if engine.aliases:
            return not self.aliased
        return bool(engine.versions) and not (self.registered or self.aliased)

    def _old(self, engine: ListedEngine) -> bool:
        return self.older_than_s is None or engine.age_s > self.older_than_s

    def _best(self, engines: Sequence[ListedEngine]) -> Iterator[str]:
        if self.keep_best is None:
            return
        every = pd.concat([engine.cells for engine in engines], ignore_index=True)
        ok = every[(every["verdict"] == str(Verdict.OK)) & every[self.metric].notna()]
        ordered = ok.sort_values(self.metric, ascending=CELL_METRICS[self.metric].better == "lower", kind="stable")
        for _, rows in ordered.groupby(list(GROUP), sort=False, dropna=False):
            yield from rows["model_id"].drop_duplicates().head(self.keep_best)

    def _newest(self, engines: Sequence[ListedEngine]) -> Iterator[str]:
        if self.keep_newest is None:
            return
        ages = {engine.model_id: engine.age_s for engine in engines}
        every = pd.concat([engine.cells for engine in engines], ignore_index=True)
        ordered = every.assign(_age=every["model_id"].map(ages)).sort_values("_age", kind="stable")
        for _, rows in ordered.groupby(list(GROUP), sort=False, dropna=False):
            yield from rows["model_id"].drop_duplicates().head(self.keep_newest)


def sizes(engines: Sequence[ListedEngine]) -> dict[str, int]:
    """Bytes of each engine's files on its server, by model id."""
    with ThreadPoolExecutor(AT_ONCE, "ngraph-sizes") as pool:
        bytes_taken = pool.map(_size, engines)
        return {engine.model_id: size for engine, size in zip(engines, bytes_taken, strict=True)}


def remove(engine: ListedEngine) -> None:
    """Delete an engine's files, its versions, and its LoggedModel. Can be repeated.

    Raises `TrackingError` if it has been registered since it was looked at; if the store does not delete files, and the
    engine stays as it was; or if something failed on the way, and the next attempt finishes it.
    """
    uri = engine.tracking_uri
    client = connection.reach(uri)
    with connection.talking(uri, f"remove engine {engine.model_id}", connection.RECORDING):
        now = client.get_logged_model(engine.model_id)
        if now.tags.get(_VERSIONS) != engine.model.tags.get(_VERSIONS):
            raise TrackingError(f"engine {engine.model_id} has been registered meanwhile: it stays")
        for name, version, aliases in engine.registered:
            if set(client.get_model_version(name, version).aliases) != set(aliases):
                raise TrackingError(f"the aliases of {name}/{version} have changed meanwhile: {engine.model_id} stays")
        if objection := _objection(engine):
            raise TrackingError(f"engine {engine.model_id} stays: {objection}")
        repository = _repository(engine)
        names = _names(engine, repository)
        client.set_logged_model_tags(engine.model_id, {Tag.PRUNED: str(time.time())})
        client.finalize_logged_model(engine.model_id, "FAILED")
        _delete_files(client, engine, repository, names)
        for name, version, _ in engine.registered:
            client.delete_model_version(name, version)
        client.delete_logged_model(engine.model_id)


def _names(engine: ListedEngine, repository: ArtifactRepository) -> list[str]:
    """Paths of the files to delete. The manifest is the last one, as it tells what the others are."""
    listed = [file.path for file in _files(repository)]
    if not listed:
        return []
    try:
        known = manifests.of(download.of_model(engine.model, engine.tracking_uri)).files
    except EngineError as error:
        raise TrackingError(
            f"engine {engine.model_id} stays, as nothing tells which files are its own: {error}"
        ) from None
    if other := next((path for path in listed if path not in (*known, *BESIDE)), None):
        raise TrackingError(
            f"engine {engine.model_id} stays: its manifest does not name {harmless(other)}, which is at "
            f"{addresses.shown(engine.model.artifact_location)}: move it away, and prune again"
        )
    return sorted(listed, key=lambda path: path == MANIFEST)


def _delete_files(
    client: MlflowClient, engine: ListedEngine, repository: ArtifactRepository, names: Sequence[str]
) -> None:
    where = addresses.shown(engine.model.artifact_location)
    directory = artifact_stores.local_directory(engine.model.artifact_location)
    try:
        if directory is not None:
            remove_files(directory, lambda name: name in names and name != MANIFEST)
            remove_files(directory, MANIFEST.__eq__)
        else:
            for name in names:
                repository.delete_artifacts(name)
    except OSError as error:
        raise TrackingError(f"engine {engine.model_id}: cannot delete its files: {error}; prune again") from None
    except NotImplementedError:
        client.finalize_logged_model(engine.model_id, "READY")
        client.delete_logged_model_tag(engine.model_id, Tag.PRUNED)
        raise TrackingError(
            f"engine {engine.model_id} stays: the store of {where} does not delete files; "
            "delete them there, or let 'mlflow gc' do it on the server"
        ) from None
    if left := [file.path for file in _files(repository)]:
        raise TrackingError(f"engine {engine.model_id}: {where} still has {', '.join(left)}: prune again")
    for folder in repository.list_artifacts():
        repository.delete_artifacts(folder.path)


def _objection(engine: ListedEngine) -> str:
    """Reason why the files of an engine are not to be deleted, as they might be somebody else's; empty without one."""
    location = engine.model.artifact_location
    parts = PurePosixPath(unquote(urlsplit(location).path)).parts
    if engine.model_id not in parts or ".." in parts:
        return f"its files are said to be at {addresses.shown(location)}, which is not a place of its own"
    directory = artifact_stores.local_directory(location)
    if directory is None:
        return artifact_stores.foreign_host(location, engine.tracking_uri)
    own = [path for path in (directory, *directory.parents) if engine.model_id in path.parts]
    if linked := next((path for path in own if path.is_symlink()), None):
        return f"{linked} is a link, which could lead to files of somebody else"
    return irregular_entry(directory) if directory.is_dir() else ""


def _repository(engine: ListedEngine) -> ArtifactRepository:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(engine.model.artifact_location, tracking_uri=engine.tracking_uri)


def _size(engine: ListedEngine) -> int:
    with connection.talking(engine.tracking_uri, f"look at engine {engine.model_id}", connection.RECORDING):
        return 0 if _objection(engine) else sum(int(file.file_size or 0) for file in _files(_repository(engine)))


def _files(repository: ArtifactRepository) -> Iterator[FileInfo]:
    waiting = [""]
    while waiting:
        for file in repository.list_artifacts(waiting.pop() or None):
            if file.is_dir:
                waiting.append(file.path)
            else:
                yield file
