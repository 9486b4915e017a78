"""Engine packages from a tracking server, believed only as far as they have been checked.

The manifest comes first and must be the one whose digest the server has in a tag. Then come the files that it names,
each of them compared with its digest before it gets the name it will be used under; nothing else is looked at. So
a file that stands in its place is whole, and a download that was cut off goes on after the last such file.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE, FILE, Manifest
from mlflow_ngraph.engines.package import Package, digest_line
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

    Progress = Callable[[int], None]
    """Told the number of bytes that are there."""

AT_ONCE = 4
"""Files that are downloaded at the same time; MLflow splits large ones itself where the store can serve parts."""
_LOOK_S = 0.2
_SCRATCH = ".download-"
_VERSION = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))$")
_SOURCE = re.compile(r"(?:^models:/|/models/)(?P<id>m-[0-9a-f]{32})(?:$|/)")
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

    @property
    def shown(self) -> str:
        """The engine, for messages."""
        return f"engine {self.model_id} of {connection.masked(self.tracking_uri)}"


def of_model(model: LoggedModel, tracking_uri: str) -> Remote:
    """The package of a LoggedModel."""
    digest = model.tags.get(Tag.MANIFEST_SHA256)
    return Remote(tracking_uri, model.artifact_location, model.model_id, model.source_run_id, digest)


def locate(uri: str, tracking_uri: str) -> Remote:
    """The package that a URI names: ``models:/name@alias``, ``models:/name/1``, or the id of a LoggedModel.

    Raises
    ------
    TrackingError: the server cannot be reached or knows no such model.
    EngineError: it is no engine, or the registry and the tracking server disagree about it.
    """
    version, model = _VERSION.match(uri), _MODEL.match(uri)
    if version is None and model is None:
        raise TrackingError(
            f"{uri!r} names no engine: give models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID"
        )
    client = connection.reach(tracking_uri)
    with connection.talking(tracking_uri, f"find {uri}", connection.RECORDING):
        if model is not None:
            return of_model(client.get_logged_model(model["id"]), tracking_uri)
        assert version is not None
        found = (
            client.get_model_version_by_alias(version["name"], version["alias"])
            if version["alias"]
            else client.get_model_version(version["name"], version["version"])
        )
        return _of_version(client, found, uri, tracking_uri)


def _of_version(client: MlflowClient, version: ModelVersion, uri: str, tracking_uri: str) -> Remote:
    # The field is filled by some ways to register a model only; the source names the model in all of them.
    source = _SOURCE.search(version.source or "")
    model_id = version.model_id or (source["id"] if source else None)
    if not model_id:
        raise EngineError(f"{uri} is no engine: it was not registered from a LoggedModel")
    remote = of_model(client.get_logged_model(model_id), tracking_uri)
    promised = version.tags.get(Tag.MANIFEST_SHA256)
    if promised is not None and promised != remote.digest:
        raise EngineError(f"{uri} was registered with the manifest {promised}, {remote.shown} now has {remote.digest}")
    return remote


def manifest(remote: Remote, directory: Path) -> Manifest:
    """The manifest of a package, checked against the digest that the server has.

    Parameters
    ----------
    directory: an existing one, for what comes by; nothing stays in it.

    Raises
    ------
    EngineError: it cannot be had, or is not what was logged.
    """
    return Manifest.parse(_manifest(remote, directory), f"the manifest of {remote.shown}")


def _manifest(remote: Remote, directory: Path) -> bytes:
    if remote.digest is None:
        raise EngineError(f"{remote.shown} has no tag {Tag.MANIFEST_SHA256}: nothing tells what was logged")
    with (
        _scratch(directory) as scratch,
        connection.talking(remote.tracking_uri, f"download {FILE}", connection.RECORDING),
    ):
        content = _fetched(remote, FILE, scratch).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != remote.digest:
        raise EngineError(f"the manifest of {remote.shown} is not what was logged: its sha256 is {found}")
    return content


def pull(remote: Remote, directory: Path, progress: Progress = lambda done: None) -> Package:
    """Put a whole package into ``directory``, which may have what an earlier attempt brought.

    Raises
    ------
    EngineError: a file cannot be had, or is not what was logged; the message names it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = _manifest(remote, directory)
    found = Manifest.parse(content, f"the manifest of {remote.shown}")
    files(remote, found, list(found.files), directory, progress)
    digest = hashlib.sha256(content).hexdigest()
    (directory / FILE).write_bytes(content)
    (directory / DIGEST_FILE).write_text(digest_line(digest), encoding="utf-8")
    return Package(directory, found, digest)


def files(
    remote: Remote,
    manifest: Manifest,
    paths: Sequence[str],
    directory: Path,
    progress: Progress = lambda done: None,
) -> None:
    """Bring files of a package into ``directory``, under the paths of the manifest; those that are there stay.

    Raises
    ------
    EngineError: one cannot be had, or is not what was logged. Those that came before it are kept.
    """
    missing = [path for path in paths if not _is(directory / path, manifest.files[path])]
    with (
        _scratch(directory) as scratch,
        connection.talking(remote.tracking_uri, "download an engine", connection.RECORDING),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        running = [pool.submit(_bring, remote, path, manifest.files[path], directory, scratch) for path in missing]
        while wait(running, timeout=_LOOK_S).not_done:
            progress(_size(directory))
        for future in running:
            future.result()
    progress(_size(directory))


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A place for files that nobody has checked, on the file system where they will stay."""
    for left_over in directory.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left_over, ignore_errors=True)  # of a process that was killed
    scratch = directory / f"{_SCRATCH}{uuid4().hex}"
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _bring(remote: Remote, path: str, digest: str, directory: Path, scratch: Path) -> None:
    found = _fetched(remote, path, scratch)
    if sha256(found) != digest:
        raise EngineError(f"{path} of {remote.shown} is not what was logged: it was changed, or cut off on the way")
    target = directory / path
    target.parent.mkdir(parents=True, exist_ok=True)
    found.replace(target)


def _fetched(remote: Remote, path: str, scratch: Path) -> Path:
    """A file as the server gives it, in a directory of its own."""
    import mlflow
    from mlflow.exceptions import MlflowException

    place = scratch / uuid4().hex
    place.mkdir()
    uri = f"{remote.location.rstrip('/')}/{path}"
    try:
        found = mlflow.artifacts.download_artifacts(
            artifact_uri=uri, dst_path=str(place), tracking_uri=remote.tracking_uri
        )
    except (MlflowException, OSError) as error:
        raise EngineError(
            f"cannot download {path} of {remote.shown}: {connection.masked(' '.join(str(error).split()))}"
        ) from None
    return Path(found)


def _is(path: Path, digest: str) -> bool:
    """Whether a file of an earlier attempt is what it should be."""
    return path.is_file() and not path.is_symlink() and sha256(path) == digest


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # renamed since it was listed
            total += path.lstat().st_size if path.is_file() else 0
    return total
