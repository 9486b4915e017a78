"""Fetch an engine's signature from a tracking server, unchecked, or sign its manifest there and tag the engine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.engines import signing
from mlflow_ngraph.engines.manifest import SIGNATURE_FILE
from mlflow_ngraph.tracking import artifact_stores, connection, download, transfer
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def fetch(remote: Remote) -> bytes | None:
    """The signature of an engine; None without one. It is not checked: that is for `trust.require`.

    Raises `EngineError` if the server announces one and does not return it, and `TrackingError` if it cannot be
    reached.
    """
    if not remote.signed:
        return None
    with tempfile.TemporaryDirectory(prefix="ngraph-signature-") as temporary:
        place = Path(temporary)
        store = artifact_stores.store_of(remote.location, remote.tracking_uri, place)
        name = f"the signature of {remote.shown}"
        return transfer.content(store, SIGNATURE_FILE, place / SIGNATURE_FILE, name, signing.MAX_BYTES)


def bring(remote: Remote, directory: Path) -> None:
    """Put the signature of an engine, if any, beside the manifest of the pulled package."""
    signature = fetch(remote)
    if signature is not None:
        (directory / SIGNATURE_FILE).write_bytes(signature)


def sign(remote: Remote, key: Ed25519PrivateKey) -> str:
    """Sign the manifest of a logged engine, in place of an earlier signature.

    The manifest must be the one whose digest the server has. Its files are for the caller to check; see
    `check_whole` in the plugin ``engines``.

    Returns the fingerprint of the key. Raises `EngineError` if the manifest differs from the logged one, and
    `TrackingError` if the server cannot be reached, or refuses.
    """
    with tempfile.TemporaryDirectory(prefix="ngraph-sign-") as temporary:
        directory = Path(temporary)
        _, content = download.manifest(remote)
        path = directory / SIGNATURE_FILE
        path.write_bytes(signing.sign(content, key))
        artifact_stores.require_host(remote.shown, remote.location, remote.tracking_uri)
        client = connection.connect(remote.tracking_uri)
        by = signing.fingerprint(signing.public_blob(signing.public_text(key)))
        with connection.talking(remote.tracking_uri, "log the signature", connection.RECORDING):
            client.log_model_artifact(remote.model_id, str(path))
            client.set_logged_model_tags(remote.model_id, {Tag.SIGNED_BY: by})
    return by
