"""Fetch and check the manifest of an engine on a tracking server, before any other file of it is loaded.

The manifest must be the one that was logged, its signature must be one of it, and the rules must trust the server or
the signer. Everything else in a package follows from its manifest, so nothing that stays outside here is ever loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph.engines import trust
from mlflow_ngraph.tracking import download, signature_files

if TYPE_CHECKING:
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.trust import Rules, Trusted
    from mlflow_ngraph.tracking.download import Remote


@dataclass(frozen=True)
class TrustedManifest:
    """The manifest of an engine that may be loaded."""

    manifest: Manifest
    content: bytes
    """The manifest, which digest and signature cover."""
    signature: bytes | None
    """None where nobody has signed it."""
    trusted: Trusted
    """Reason for trusting it."""


def trusted_manifest(remote: Remote, rules: Rules) -> TrustedManifest:
    """The manifest of an engine on a server, once everything is known that speaks against using it.

    Raises `EngineError` if the manifest or its signature cannot be had or are not what was logged, or the rules refuse
    the engine, and `TrackingError` if the server cannot be reached, or MLflow does not know where the manifest lies.
    """
    for source in remote.sources:
        trust.require_source(source, rules)
    manifest, content = download.manifest(remote)
    signature = signature_files.fetch(remote)
    trusted, *_ = [trust.require(content, signature, source, rules) for source in remote.sources]
    return TrustedManifest(manifest, content, signature, trusted)
