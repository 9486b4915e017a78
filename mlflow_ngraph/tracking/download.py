"""Locate engine packages on a tracking server and download them; each file is trusted only once it is checked.

The manifest comes first and must be the one whose digest the server has in a tag. Then come the files that it names,
each of them compared with its digest while it arrives, before it gets the name it will be used under; nothing else is
looked at. So a file that stands in its place is whole, and a download that was cut off goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses
from mlflow_ngraph.engines.files import remove_files, sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE, ENGINE_DIRECTORY, FILE, MAX_BYTES, Manifest
from mlflow_ngraph.engines.package import Package, check_spec, digest_line
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import artifact_stores, connection, plain_http, sqlite_file, transfer
from mlflow_ngraph.tracking.model_registry import model_id_of
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.transfer import ArtifactStore, FilePart

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

    Progress = Callable[[int, int], None]
    """Told how many bytes are there, and how many there will be as far as is known. Called from several threads."""

_PARTS = ".parts"
"""Folder of incomplete files within a package."""
_MOST_OF_OTHERS = 32 << 20
"""Bytes of the files that make an engine a model of MLflow; the manifest has no size of them."""
_TIMEOUT_S = 30.0
_VERSION = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))$")
_MODEL = re.compile(r"(?:models:/)?(?P<id>m-[0-9a-f]{32})$")


@dataclass(frozen=True)
class Remote:
    """A package on a tracking server."""

    tracking_uri: str
    location: str
    """The artifact URI of its directory."""
    model_id: str
    run_id: str | None
    digest: str | None
    """sha256 that its manifest must have, from the server's own records."""
    signed: bool = False
    """True if there is a signature beside its manifest; see `mlflow_ngraph.tracking.signature_files`."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Addresses that trust rules are about: the server, and where the files are if that is elsewhere."""
        elsewhere = not artifact_stores.is_of_server(self.location, self.tracking_uri)
        return (self.tracking_uri, self.location) if elsewhere else (self.tracking_uri,)

    @property
    def shown(self) -> str:
        """Name of the engine for messages."""
        return f"engine {self.model_id} of {addresses.shown(self.tracking_uri)}"


def of_model(model: LoggedModel, tracking_uri: str) -> Remote:
    """The package of a LoggedModel."""
    return _remote(tracking_uri, model.artifact_location, model.model_id, model.source_run_id, model.tags)


def _remote(tracking_uri: str, location: str, model_id: str, run_id: str | None, tags: Mapping[str, str]) -> Remote:
    return Remote(tracking_uri, location, model_id, run_id, tags.get(Tag.MANIFEST_SHA256), Tag.SIGNED_BY in tags)


def of_id(model_id: str, tracking_uri: str) -> Remote:
    """The package of the LoggedModel with this id. Raises `TrackingError` if it cannot be found on the server."""
    remote = _asked(model_id, tracking_uri)
    if remote is not None:
        return remote
    client = connection.reach(tracking_uri)
    with connection.talking(tracking_uri, f"find models:/{model_id}", connection.RECORDING):
        return of_model(client.get_logged_model(model_id), tracking_uri)


def _asked(model_id: str, tracking_uri: str) -> Remote | None:
    """The same by asking the store directly; None where MLflow's client has to ask, or to report the error."""
    path = sqlite_file.of(tracking_uri)
    if path is not None:
        with suppress(sqlite3.Error):
            model = sqlite_file.logged_model(path, model_id)
            return None if model is None else _remote(tracking_uri, model.location, model_id, model.run_id, model.tags)
    if not plain_http.speaks(tracking_uri):
        return None
    address = f"{tracking_uri.rstrip('/')}/api/2.0/mlflow/logged-models/{model_id}"
    with plain_http.excused(), plain_http.session(1) as http:
        answer = http.get(address, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        info = answer.json()["model"]["info"]
        tags = {tag["key"]: tag.get("value", "") for tag in info.get("tags", ())}
        return _remote(tracking_uri, info["artifact_uri"], info["model_id"], info.get("source_run_id") or None, tags)
    return None


def locate(uri: str, tracking_uri: str) -> Remote:
    """The package that a URI names: ``models:/name@alias``, ``models:/name/1``, or the id of a LoggedModel.

    Raises `TrackingError` if the server cannot be reached or knows no such model, and `EngineError` if it is no engine,
    or the registry and the tracking server disagree about it.
    """
    version, model = _VERSION.match(uri), _MODEL.match(uri)
    if model is not None:
        return of_id(model["id"], tracking_uri)
    if version is None:
        raise TrackingError(
            f"{uri!r} names no engine: give models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID"
        )
    client = connection.reach(tracking_uri)
    with connection.talking(tracking_uri, f"find {uri}", connection.RECORDING):
        model_version = (
            client.get_model_version_by_alias(version["name"], version["alias"])
            if version["alias"]
            else client.get_model_version(version["name"], version["version"])
        )
        return _of_version(client, model_version, uri, tracking_uri)


def _of_version(client: MlflowClient, version: ModelVersion, uri: str, tracking_uri: str) -> Remote:
    model_id = model_id_of(version)
    if not model_id:
        raise EngineError(f"{uri} is no engine: it was not registered from a LoggedModel")
    remote = of_model(client.get_logged_model(model_id), tracking_uri)
    promised = version.tags.get(Tag.MANIFEST_SHA256)
    if promised is not None and promised != remote.digest:
        raise EngineError(f"{uri} was registered with the manifest {promised}, {remote.shown} now has {remote.digest}")
    return remote


def manifest(remote: Remote) -> tuple[Manifest, bytes]:
    """The manifest of a package, checked against the digest that the server has, and its content.

    Raises `EngineError` if it is missing or differs from the logged one, and `TrackingError` if MLflow does not know
    where it lies.
    """
    name = f"the manifest of {remote.shown}"
    if remote.digest is None:
        raise EngineError(f"{remote.shown} has no tag {Tag.MANIFEST_SHA256}: nothing tells what was logged")
    with TemporaryDirectory(prefix="ngraph-manifest-") as temporary:
        place = Path(temporary)
        store = artifact_stores.store_of(remote.location, remote.tracking_uri, place)
        with store.settings():
            content = transfer.content(store, FILE, place / FILE, f"{FILE} of {remote.shown}", MAX_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    if digest != remote.digest:
        raise EngineError(f"{name} is not what was logged: its sha256 is {digest}")
    return Manifest.parse(content, name), content


def pull(remote: Remote, directory: Path, progress: Progress = lambda done, total: None) -> Package:
    """Download a package into ``directory``, which may hold parts from an earlier attempt.

    Raises `EngineError`, which names the file, if one is missing or differs from the logged one, and `TrackingError` if
    MLflow does not know where its files lie.
    """
    package_manifest, content = manifest(remote)
    return fill(remote, package_manifest, content, directory, progress, whole=True)


def fill(
    remote: Remote,
    manifest: Manifest,
    content: bytes,
    directory: Path,
    progress: Progress = lambda done, total: None,
    *,
    whole: bool = False,
) -> Package:
    """Download the engine's own files, or the whole package, by a manifest that is already here.

    Files in ``directory`` that are not of this package are removed. Raises as `pull`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _clear(directory, manifest)
    paths = [path for path in manifest.files if whole or path.startswith(f"{ENGINE_DIRECTORY}/")]
    files(remote, manifest, paths, directory, progress)
    digest = hashlib.sha256(content).hexdigest()
    (directory / FILE).write_bytes(content)
    (directory / DIGEST_FILE).write_text(digest_line(digest), encoding="utf-8")
    check_spec(directory / ENGINE_DIRECTORY, manifest)
    return Package(directory, manifest, digest)


def files(
    remote: Remote,
    manifest: Manifest,
    paths: Sequence[str],
    directory: Path,
    progress: Progress = lambda done, total: None,
) -> None:
    """Bring files of a package into ``directory``, under the paths of the manifest; those that are there stay.

    Raises as `pull`. The parts of all files are kept.
    """
    parts = directory / _PARTS
    parts.mkdir(parents=True, exist_ok=True)
    store = artifact_stores.store_of(remote.location, remote.tracking_uri, parts)
    others = [path for path in paths if not path.startswith(f"{ENGINE_DIRECTORY}/")]
    most = manifest.size_bytes + (_MOST_OF_OTHERS if others else 0)
    meter, stop = _Meter(remote.shown, manifest.size_bytes, most, progress), Event()

    def bring(path: str) -> None:
        _bring(remote, store, path, manifest.files[path], directory, meter, stop)

    pool = ThreadPoolExecutor(transfer.AT_ONCE, "ngraph-download")
    with store.settings():
        try:
            for done in as_completed([pool.submit(bring, path) for path in paths]):
                done.result()
        finally:
            # On the way out of an error, or of an interrupt: nobody waits for what is still coming.
            stop.set()
            pool.shutdown(cancel_futures=True)
    shutil.rmtree(parts)


class _Meter:
    """Counts bytes of files that come at the same time, and stops them where there are more than the manifest allows."""

    def __init__(self, name: str, engine_bytes: int, most: int, progress: Progress) -> None:
        self._name, self._engine_bytes, self._most, self._progress = name, engine_bytes, most, progress
        self._done = 0
        self._others: dict[str, int] = {}
        self._lock = Lock()

    def sized(self, path: str, size: int) -> None:
        """Take in the size of a file. The manifest knows that of all files of the engine together."""
        self._bound(size)
        if not path.startswith(f"{ENGINE_DIRECTORY}/"):
            with self._lock:
                self._others[path] = size

    def came(self, count: int) -> None:
        """Take in that so many bytes are there which were not before."""
        with self._lock:
            self._done += count
            self._bound(self._done)
            self._progress(self._done, max(self._done, self._engine_bytes + sum(self._others.values())))

    def _bound(self, size: int) -> None:
        if size > self._most:
            raise EngineError(f"{self._name} is not what was logged: its files have more bytes than its manifest says")


def _bring(
    remote: Remote, store: ArtifactStore, path: str, digest: str, directory: Path, meter: _Meter, stop: Event
) -> None:
    target = directory / path
    if _is(target, digest):
        size = target.stat().st_size
        meter.sized(path, size)
        meter.came(size)
        return
    # Named by what it will be: the part of another file is never taken for it.
    place = directory / _PARTS / f"{digest}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    part = FilePart(place, meter.came, stop.is_set)
    transfer.bring(store, path, digest, part, f"{path} of {remote.shown}", lambda size: meter.sized(path, size))
    target.parent.mkdir(parents=True, exist_ok=True)
    place.touch()  # of a file without content nothing has come
    place.replace(target)


def _is(path: Path, digest: str) -> bool:
    """Test if a file of an earlier attempt is complete and correct."""
    return path.is_file() and not path.is_symlink() and sha256(path) == digest


def _clear(directory: Path, manifest: Manifest) -> None:
    """Remove files of other packages: an earlier attempt may have been for another one."""
    remove_files(directory, lambda name: name not in manifest.files and not name.startswith(f"{_PARTS}/"))
