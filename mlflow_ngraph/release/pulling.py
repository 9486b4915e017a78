"""Engines from a tracking server to a place on this machine, where they stand whole and proven or not at all.

An engine is brought into a hidden directory beside its place, ``.NAME.pull``. Whether it is trusted and fits this
machine is known from its manifest, before anything else is downloaded; every file is compared with its digest while it
arrives; a process of its own then loads the engine and compares its outputs for the probe. Only then does the directory
get its name. What ends before that leaves the hidden directory, where the next call goes on.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.compilers.spec import FILE as SPEC
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.load_check import LoadCheck
from mlflow_ngraph.engines.manifest import DIGEST_FILE, ENGINE_DIRECTORY, SIGNATURE_FILE, Manifest
from mlflow_ngraph.engines.package import Package, read_manifest
from mlflow_ngraph.engines.staging import Landing, landing
from mlflow_ngraph.engines.verification import Check, Verification, verify, verify_arrived
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.tracking import connection, download, schema
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.trusted import TrustedManifest, trusted_manifest

if TYPE_CHECKING:
    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph.tracking.download import Progress
    from mlflow_ngraph.tracking.sources import EngineFilter

State = Literal["pulled", "replaced", "unchanged"]


@dataclass(frozen=True)
class Pulled:
    """An engine that stands on this machine."""

    package: Package
    """`mlflow_ngraph.load_model` takes its directory."""
    remote: Remote
    """Where it comes from."""
    state: State
    """Whether it was brought now, took the place of another one, or had been there whole."""
    checks: tuple[Check, ...]
    """What was looked at; nothing of it was found wrong."""

    @property
    def directory(self) -> Path:
        """Where it stands."""
        return self.package.directory


@dataclass(frozen=True)
class _Offer:
    """An engine on a server that is trusted and fits this machine."""

    remote: Remote
    described: TrustedManifest

    @property
    def manifest(self) -> Manifest:
        """What the engine is."""
        return self.described.manifest

    @property
    def trust_check(self) -> Check:
        """Why it is trusted, as one of the checks."""
        return Check("trust", "ok", self.described.trusted.found)

    def put_signature(self, directory: Path) -> None:
        """Put the signature, where there is one, beside the manifest of the package in ``directory``."""
        if self.described.signature is not None:
            (directory / SIGNATURE_FILE).write_bytes(self.described.signature)


def pull_engine(
    source: str | Remote,
    target: str | Path | None = None,
    *,
    tracking_uri: str | None = None,
    wanted: EngineFilter | None = None,
    force: bool = False,
    trust: str | Path | None = None,
    home: str | Path | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """Bring an engine here, prove it, and put it in its place. Needs no torch, but for engines that do.

    Parameters
    ----------
    source : str | Remote
        ``models:/name@alias``, ``models:/name/1``, ``models:/m-...``, or the id of a study or lane run.
    target : str | Path | None
        The directory that it becomes; when left out, one of its own in ``pulled`` below ``home``.
    tracking_uri : str | None
        MLflow's own default when left out.
    wanted : EngineFilter | None
        Which engine of a run, where it has several.
    force : bool
        Replace an engine at ``target`` that is another one, or damaged.
    trust : str | Path | None
        A file with rules, or ``any`` for none; by default ``$NGRAPH_TRUST``, else ``trust.yaml`` in the home directory.
    home : str | Path | None
        ``$NGRAPH_HOME``, or the user's data directory when left out.
    progress : Progress | None
        Told how many bytes are there, and how many there will be. Called from several threads.

    Raises
    ------
    TrackingError
        The server cannot be reached, or knows no such engine.
    UsageError
        Several engines are meant, or something else is at ``target``.
    EngineError
        The engine is not trusted, does not fit this machine (with the command that builds it here), a file is not what
        was logged (with its name), or the outputs are not those of the model.
    """
    rules = trusting.load(trust)
    uri = source.tracking_uri if isinstance(source, Remote) else connection.resolve_uri(tracking_uri)
    trusting.admit(uri, rules)
    offer = _offered(source if isinstance(source, Remote) else _found(source, uri, wanted), rules)
    place = Path(target).expanduser().absolute() if target is not None else _default(offer, home)
    unchanged = _standing(place, offer, force=force)
    if unchanged is not None:
        return unchanged
    with landing(place) as ground:
        # Somebody else may have brought it while we waited for the ground.
        unchanged = _standing(place, offer, force=force)
        if unchanged is not None:
            ground.discard()
            return unchanged
        _check_room(place.parent, offer.manifest, ground)
        state: State = "replaced" if place.is_dir() and any(place.iterdir()) else "pulled"
        package, verification = _brought(offer, ground, progress or (lambda done, total: None))
        _require(verification, offer.remote, ground)
        ground.land()
    return Pulled(
        Package(place, package.manifest, package.digest), offer.remote, state, (offer.trust_check, *verification.checks)
    )


def _found(source: str, tracking_uri: str, wanted: EngineFilter | None) -> Remote:
    from mlflow_ngraph.tracking import sources

    return sources.find(source, tracking_uri, wanted or sources.EngineFilter())


def _offered(remote: Remote, rules: Rules) -> _Offer:
    """What is known of an engine before it is downloaded.

    Raises
    ------
    EngineError
        The manifest is not what was logged, or the engine is not trusted or does not fit this machine.
    """
    described = trusted_manifest(remote, rules)
    compatibility.check(described.manifest, remote.shown)
    return _Offer(remote, described)


def _brought(offer: _Offer, ground: Landing, progress: Progress) -> tuple[Package, Verification]:
    """The package, whole, and what a process says that has tried it."""
    with LoadCheck(offer.manifest.spec) as trial:
        package = download.fill(offer.remote, offer.manifest, offer.described.content, ground.package, progress)
        offer.put_signature(package.directory)
        return package, verify_arrived(package, trial)


def _default(offer: _Offer, home: str | Path | None) -> Path:
    """A directory that no other engine has: its name ends with the digest of the manifest."""
    spec, label = offer.manifest.spec, offer.manifest.origin.label
    batches = "-".join(map(str, spec.batch_sizes))
    digest = str(offer.remote.digest)[:8]
    name = schema.model_name(f"{label}-{spec.compiler}-{spec.target.precision}-b{batches}-{digest}")
    return home_directory.pulled(home_directory.directory(None if home is None else Path(home))) / name


def _standing(place: Path, offer: _Offer, *, force: bool) -> Pulled | None:
    """The engine, if it is at ``place`` already; None where it may be put there.

    Raises
    ------
    UsageError
        Another engine or something else is there.
    EngineError
        The engine is there and damaged, or does not work.
    """
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    if not any((place / name).is_file() for name in (DIGEST_FILE, f"{ENGINE_DIRECTORY}/{SPEC}")):
        # Not with force either: it is nothing that pulling can bring back.
        raise UsageError(f"{place} exists and is no engine package: choose another place for the engine")
    try:
        there = read_manifest(place)
    except EngineError as error:
        if force:
            return None
        raise EngineError(f"{error}; pull it again with --force") from None
    if there.digest != offer.remote.digest:
        if force:
            return None
        raise UsageError(
            f"{place} has another engine, {there.manifest.shown}: choose another place, or replace it with --force"
        )
    verification = verify(place, offer.remote.digest)
    if verification.checks[0].status == "problem":  # its digests
        if force:
            return None
        raise EngineError(f"{verification.checks[0].found}; pull it again with --force")
    verification.require()
    offer.put_signature(place)  # somebody may have signed it since
    return Pulled(there, offer.remote, "unchanged", (offer.trust_check, *verification.checks))


def _check_room(directory: Path, manifest: Manifest, ground: Landing) -> None:
    """Say beforehand that a disk is too small."""
    there = sum(path.stat().st_size for path in ground.package.rglob("*") if path.is_file())
    missing, free = manifest.size_bytes - there, shutil.disk_usage(directory).free
    if missing > free:
        ground.discard()
        raise UsageError(
            f"{directory} has {free / 1e6:.0f} MB free, and the engine needs {missing / 1e6:.0f} MB: choose another place"
        )


def _require(verification: Verification, remote: Remote, ground: Landing) -> None:
    """Make sure that the engine works; what does not is not worth keeping, for it was whole."""
    try:
        verification.require()
    except EngineError as error:
        message = str(error).replace(str(ground.package), remote.shown)
        ground.discard()
        raise EngineError(message) from None
