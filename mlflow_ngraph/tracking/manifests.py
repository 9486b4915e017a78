"""Manifests of engines, each fetched once: kept on this machine by the digest that the server has of them.

A kept manifest proves by its digest that it is the one that was logged, so it never goes stale.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import platformdirs

from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.tracking import download

if TYPE_CHECKING:
    from mlflow_ngraph.tracking.download import Remote


def of(remote: Remote) -> Manifest:
    """The manifest of an engine, from this machine if it is here.

    Raises
    ------
    EngineError, TrackingError: as `download.manifest`.
    """
    place = _place(remote.digest)
    if place is not None:
        with suppress(OSError):
            content = place.read_bytes()
            if hashlib.sha256(content).hexdigest() == remote.digest:
                return Manifest.parse(content, f"the manifest of {remote.shown}")
    found, content = download.manifest(remote)
    if place is not None:
        _keep(place, content)
    return found


def _place(digest: str | None) -> Path | None:
    if digest is None or len(digest) != 64 or not digest.isalnum():
        return None
    return Path(platformdirs.user_cache_dir("mlflow-ngraph")) / "manifests" / f"{digest}.json"


def _keep(place: Path, content: bytes) -> None:
    """A full or read-only disk only makes the next time slower."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{uuid4().hex}")
        try:
            partial.write_bytes(content)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
