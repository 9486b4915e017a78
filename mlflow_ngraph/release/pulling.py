"""Pull engines from a tracking server, verified before they get their name.

An engine is downloaded to the hidden directory ``.NAME.pull``. Trust, consent and requirements are checked from the
manifest first, and each file against its digest while it arrives. What makes it a model of MLflow is not downloaded but
written anew: it names code that MLflow runs. A separate process loads the engine and compares its outputs for the probe.
Then the directory is renamed. An interrupted pull leaves the hidden directory, where the next one resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.compilers.spec import FILE as SPEC
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.load_check import LoadCheck
from mlflow_ngraph.engines.manifest import DIGEST_FILE, ENGINE_DIRECTORY, SIGNATURE_FILE, Manifest
from mlflow_ngraph.engines.model_files import MODEL
from mlflow_ngraph.engines.package import Package, read_manifest, require_outside
from mlflow_ngraph.engines.staging import StagingDirectory, staging_directory
from mlflow_ngraph.engines.verification import Check, Verification, model_check, verify, verify_arrived
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.release import consent
from mlflow_ngraph.tracking import connection, download, model_files, schema
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.trusted import TrustedManifest, trusted_manifest

if TYPE_CHECKING:
    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph.tracking.download import Progress
    from mlflow_ngraph.tracking.sources import EngineFilter

State = Literal["pulled", "replaced", "unchanged"]


@dataclass(frozen=True)
class Pulled:
    """An engine on this machine."""

    package: Package
    """`mlflow_ngraph.load_model` takes its directory."""
    remote: Remote
    """Source of the engine."""
    state: State
    """Downloaded now, replaced another one, or already present."""
    checks: tuple[Check, ...]
    """Checks that passed."""

    @property
    def directory(self) -> Path:
        return self.package.directory


@dataclass(frozen=True)
class _Offer:
    """A trusted engine on a server that fits this machine."""

    remote: Remote
    described: TrustedManifest

    @property
    def manifest(self) -> Manifest:
        return self.described.manifest

    @property
    def trust_check(self) -> Check:
        """Reason for trust, and what is trusted, as a check."""
        return Check("trust", "ok", f"{self.described.trusted.found}; {consent.kind(self.manifest)}")

    def put_signature(self, directory: Path) -> None:
        """Write the signature, if any, next to the manifest in ``directory``."""
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
    run: bool = False,
    home: str | Path | None = None,
    progress: Progress | None = None,
    tell: Callable[[Manifest, Check], None] = lambda manifest, check: None,
) -> Pulled:
    """Pull an engine and verify it. Needs torch only for engines that do.

    Parameters
    ----------
    source : str | Remote
        ``models:/name@alias``, ``models:/name/1``, ``models:/m-...``, or the id of a study or lane run.
    target : str | Path | None
        Directory of the engine; by default a new one in ``pulled`` below ``home``.
    tracking_uri : str | None
        MLflow's own default when left out.
    wanted : EngineFilter | None
        Selects one of a run's engines.
    force : bool
        Replace a different or damaged engine at ``target``.
    trust : str | Path | None
        A file with rules, or ``any`` for none; by default ``$NGRAPH_TRUST``, else ``trust.yaml`` in the home directory.
    run : bool
        Let an engine that is a program run although no rule allows it. ``home`` remembers it.
    home : str | Path | None
        ``$NGRAPH_HOME``, or the user's data directory when left out.
    progress : Progress | None
        Told how many bytes are there, and how many there will be. Called from several threads.
    tell : Callable[[Manifest, Check], None]
        Told which engine it is, why it is trusted and whether it is a program, before it is downloaded.

    Raises
    ------
    TrackingError
        The server cannot be reached, or knows no such engine.
    UsageError
        The source is ambiguous, or something else is at ``target``, or that is inside of another package.
    EngineError
        The engine is not trusted, is a program that nobody has allowed, does not fit this machine (with the command that
        builds it here), a file is not what was logged (with its name), or the outputs are not those of the model.
    """
    rules = trusting.load(trust, home)
    uri = source.tracking_uri if isinstance(source, Remote) else connection.resolve_uri(tracking_uri)
    trusting.require_source(uri, rules)
    offer = _offered(source if isinstance(source, Remote) else _found(source, uri, wanted), rules)
    tell(offer.manifest, offer.trust_check)
    consent.require(offer.manifest, str(offer.remote.digest), offer.described.trusted, run, home)
    place = Path(target).expanduser().absolute() if target is not None else _default(offer, home)
    require_outside(place)
    unchanged = _standing(place, offer, force=force)
    if unchanged is not None:
        return unchanged
    with staging_directory(place) as staging:
        # Another process may have pulled it during the wait.
        unchanged = _standing(place, offer, force=force)
        if unchanged is not None:
            staging.discard()
            return unchanged
        _check_room(place.parent, offer.manifest, staging)
        state: State = "replaced" if place.is_dir() and any(place.iterdir()) else "pulled"
        package, verification = _brought(offer, staging, progress or (lambda done, total: None))
        _require(verification, offer.remote, staging)
        staging.publish()
    return Pulled(
        Package(place, package.manifest, package.digest), offer.remote, state, (offer.trust_check, *verification.checks)
    )


def _found(source: str, tracking_uri: str, wanted: EngineFilter | None) -> Remote:
    from mlflow_ngraph.tracking import sources

    return sources.find(source, tracking_uri, wanted or sources.EngineFilter())


def _offered(remote: Remote, rules: Rules) -> _Offer:
    """Manifest and trust of an engine, before the download."""
    described = trusted_manifest(remote, rules)
    compatibility.check(described.manifest, remote.shown)
    return _Offer(remote, described)


def _brought(offer: _Offer, staging: StagingDirectory, progress: Progress) -> tuple[Package, Verification]:
    with LoadCheck(offer.manifest.spec) as trial:
        package = download.fill(offer.remote, offer.manifest, offer.described.content, staging.package, progress)
        offer.put_signature(package.directory)
        _write_model(package, offer.remote)
        return package, verify_arrived(package, trial)


def _write_model(package: Package, remote: Remote) -> None:
    from mlflow.models import Model

    manifest = package.manifest
    described = Model(run_id=remote.run_id, model_uuid=remote.model_id, model_id=remote.model_id)
    model_files.write(
        package.directory, manifest.spec, manifest.compiler_version, described, size_bytes=manifest.size_bytes
    )


def _default(offer: _Offer, home: str | Path | None) -> Path:
    spec, label = offer.manifest.spec, offer.manifest.origin.label
    batches = "-".join(map(str, spec.batch_sizes))
    digest = str(offer.remote.digest)[:8]
    name = schema.model_name(f"{label}-{spec.compiler}-{spec.target.precision}-b{batches}-{digest}")
    return home_directory.pulled_engines(home_directory.directory(None if home is None else Path(home))) / name


def _standing(place: Path, offer: _Offer, *, force: bool) -> Pulled | None:
    """The engine if it is at ``place`` already; None where ``place`` is available."""
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return None
    if not any((place / name).is_file() for name in (DIGEST_FILE, f"{ENGINE_DIRECTORY}/{SPEC}")):
        # Not with force either: pulling could not restore it.
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
    checks = _with_model(there, offer.remote, verification.checks)
    if force and any(check.name == "mlflow" and check.status != "ok" for check in checks):
        return None
    offer.put_signature(place)  # it may have been signed since
    return Pulled(there, offer.remote, "unchanged", (offer.trust_check, *checks))


def _with_model(package: Package, remote: Remote, checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Make a whole package a model of MLflow where it is none any more, and return the checks of what is there then."""
    if (package.directory / MODEL).exists():
        return checks
    try:
        _write_model(package, remote)
    except OSError as error:
        raise UsageError(f"cannot write to {package.directory}: {error.strerror}") from None
    return tuple(one for check in checks for one in (model_check(package) if check.name == "mlflow" else [check]))


def _check_room(directory: Path, manifest: Manifest, staging: StagingDirectory) -> None:
    there = sum(path.stat().st_size for path in staging.package.rglob("*") if path.is_file())
    missing, free = manifest.size_bytes - there, shutil.disk_usage(directory).free
    if missing > free:
        staging.discard()
        raise UsageError(
            f"{directory} has {free / 1e6:.0f} MB free, and the engine needs {missing / 1e6:.0f} MB: choose another place"
        )


def _require(verification: Verification, remote: Remote, staging: StagingDirectory) -> None:
    """Test the engine. A complete package that fails is deleted."""
    try:
        verification.require()
    except EngineError as error:
        message = str(error).replace(str(staging.package), remote.shown)
        staging.discard()
        raise EngineError(message) from None
