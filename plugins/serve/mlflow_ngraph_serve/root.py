"""Store of deployments on this machine: named engines, safe against a crash at any moment.

Packages lie under the digest of their manifest and never change. A deployment is one small file, which names its package
and is replaced as a whole: until a new package is there and proven, the file still says the old one. What a crash leaves
behind belongs to nobody, and the next change removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from filelock import FileLock, Timeout

from mlflow_ngraph import addresses
from mlflow_ngraph.engines import trust
from mlflow_ngraph.engines.package import Package, open_package, read_manifest
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.home import location
from mlflow_ngraph.release import consent
from mlflow_ngraph_serve import source
from mlflow_ngraph_serve.settings import Settings, check_name

if TYPE_CHECKING:
    from mlflow_ngraph.engines.manifest import Manifest

LOCK_S = 600.0
"""Longest wait of a change for another one, which may be pulling an engine."""
_RECORDS = "deployments"
_PACKAGES = "packages"
_INCOMING = ".incoming"


@dataclass(frozen=True)
class Deployment:
    """A named engine."""

    name: str
    model_uri: str
    """Source of the engine."""
    digest: str
    """Digest of its package's manifest."""
    config: dict[str, Any] = field(default_factory=dict)
    """Configuration as given: options of the server, and ``url``."""
    created_at: float = 0.0
    """Unix seconds."""
    updated_at: float = 0.0
    source: str = ""
    """Address that the trust rules are asked about: of a tracking server, or of a directory."""


class Root:
    """The directory that holds all deployments.

    Parameters
    ----------
    directory : Path | None
        An absolute one; ``deployments`` below the home of studies when left out.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or location() / "deployments"

    def names(self) -> list[str]:
        """Sorted names of the deployments."""
        return sorted(path.stem for path in (self.directory / _RECORDS).glob("*.json"))

    def get(self, name: str) -> Deployment:
        """A deployment.

        Raises
        ------
        UsageError
            There is none of this name.
        EngineError
            Its record is damaged.
        """
        path = self._record(name)
        try:
            return Deployment(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise UsageError(f"there is no deployment {name!r} at {self.directory}: known: {known}") from None
        except (OSError, ValueError, TypeError) as error:
            raise EngineError(f"{path} is not readable: {error}; delete the deployment and create it again") from None

    def package(self, deployment: Deployment) -> Package:
        """The package of a deployment to load, with every file compared with its digest.

        Raises
        ------
        EngineError
            It is damaged, or not trusted any more.
        """
        package = open_package(self.place(deployment), deployment.digest)
        consent.require_package(package, deployment.source, trust.load(), run=False)
        return package

    def manifest(self, deployment: Deployment) -> Manifest:
        """Manifest of a deployment's engine; its other files are not checked.

        Raises
        ------
        EngineError
            The manifest is damaged.
        """
        return read_manifest(self.place(deployment), deployment.digest).manifest

    def place(self, deployment: Deployment) -> Path:
        return self.directory / _PACKAGES / deployment.digest

    def create(self, name: str, model_uri: str, config: Mapping[str, Any], tracking_uri: str | None) -> Deployment:
        """Bring an engine here, prove it, and give it a name.

        Raises
        ------
        UsageError
            The name is taken or none, or the config is wrong.
        EngineError
            The engine is damaged, does not fit this machine, or computes something else.
        TrackingError
            The server cannot be reached, or knows no such engine.
        """
        path = self._record(name)
        check_config(config)
        with self._changing():
            if path.exists():
                raise UsageError(f"there is a deployment {name!r} at {self.directory}: update or delete it")
            digest, origin = self._bring(model_uri, tracking_uri)
            now = time.time()
            return self._write(Deployment(name, model_uri, digest, dict(config), now, now, origin))

    def update(
        self, name: str, model_uri: str | None, config: Mapping[str, Any], tracking_uri: str | None
    ) -> Deployment:
        """Give a name to another engine, or other options to a deployment; until that is done, nothing changes.

        Raises
        ------
        As `create`, and UsageError where there is no such deployment.
        """
        with self._changing():
            old = self.get(name)
            # An empty value takes an option back.
            absent = [option for option, value in config.items() if value == "" and option not in old.config]
            if absent:
                raise UsageError(f"{absent[0]}: deployment {name!r} has no such option that could be taken back")
            merged = {option: value for option, value in {**old.config, **config}.items() if value != ""}
            check_config(merged)
            digest, origin = (old.digest, old.source) if model_uri is None else self._bring(model_uri, tracking_uri)
            changed = Deployment(name, model_uri or old.model_uri, digest, merged, old.created_at, time.time(), origin)
            return self._write(changed)

    def delete(self, name: str) -> None:
        """Forget a deployment; its package goes with it unless another deployment has the same."""
        path = self._record(name)
        if not self.directory.is_dir():
            return
        with self._changing():
            path.unlink(missing_ok=True)
            self._sweep()

    def _record(self, name: str) -> Path:
        return self.directory / _RECORDS / f"{check_name(name)}.json"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the deployments."""
        try:
            (self.directory / _RECORDS).mkdir(parents=True, exist_ok=True)
            (self.directory / _PACKAGES).mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot keep deployments at {self.directory}: {error.strerror}") from None
        lock = FileLock(self.directory / ".lock")
        try:
            lock.acquire(timeout=LOCK_S)
        except Timeout:
            raise UsageError(f"another process is changing the deployments at {self.directory}") from None
        try:
            self._sweep()
            yield
        except OSError as error:
            raise EngineError(f"cannot change the deployments at {self.directory}: {_reason(error)}") from None
        finally:
            lock.release()

    def _bring(self, model_uri: str, tracking_uri: str | None) -> tuple[str, str]:
        """Put a proven package among the others, and return its digest and source."""
        incoming = self.directory / _INCOMING / uuid4().hex
        try:
            if source.is_directory(model_uri):
                checked = source.proven(Path(model_uri))
                shutil.copytree(checked.directory, incoming)
                # What was proven is what was copied.
                package = open_package(incoming, checked.digest)
                origin = checked.directory.resolve().as_uri()
            else:
                from mlflow_ngraph.release.pulling import pull_engine

                pulled = pull_engine(model_uri, incoming, tracking_uri=tracking_uri)
                package, origin = pulled.package, addresses.shown(pulled.remote.tracking_uri)
            place = self.directory / _PACKAGES / package.digest
            if place.exists():
                if _whole(place, package.digest):
                    return package.digest, origin
                shutil.rmtree(place)
            incoming.rename(place)
            _sync(place.parent)
            return package.digest, origin
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _write(self, deployment: Deployment) -> Deployment:
        """Replace the record as a whole, and then remove files that it no longer names."""
        path = self._record(deployment.name)
        passing = path.with_suffix(f".{uuid4().hex}")
        passing.touch(mode=0o600, exist_ok=False)  # the address of a server may have a login
        with passing.open("w", encoding="utf-8") as stream:
            json.dump(asdict(deployment), stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        passing.replace(path)
        _sync(path.parent)
        self._sweep()
        return deployment

    def _sweep(self) -> None:
        """Remove files of no deployment; the caller has the lock."""
        shutil.rmtree(self.directory / _INCOMING, ignore_errors=True)
        for path in (self.directory / _RECORDS).iterdir():
            if path.suffix != ".json":
                path.unlink()
        try:
            needed = {self.get(name).digest for name in self.names()}
        except EngineError:
            # A record that cannot be read may name any package.
            return
        for place in (self.directory / _PACKAGES).iterdir():
            if place.name not in needed:
                shutil.rmtree(place, ignore_errors=True)


def check_config(config: Mapping[str, Any]) -> Settings:
    """The options of the server in the config of a deployment.

    Raises
    ------
    UsageError
        A name is unknown, or a value wrong.
    """
    options = dict(config)
    url = options.pop("url", "http://")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise UsageError(f"url: must begin with http:// or https://, found {url!r}")
    return Settings.read(options)


def _reason(error: OSError) -> str:
    """Reason in words; of many files that could not be copied, the first one's."""
    return str(error.args[0][0][2]) if isinstance(error, shutil.Error) else error.strerror or type(error).__name__


def _whole(place: Path, digest: str) -> bool:
    try:
        open_package(place, digest)
    except EngineError:
        return False
    return True


def _sync(directory: Path) -> None:
    """Flush renames in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
