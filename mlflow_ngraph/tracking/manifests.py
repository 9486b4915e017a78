"""Manifests of engines, cached on this machine by the digest that the server has of them.

A kept manifest proves by its digest that it is the one that was logged, so it never goes stale.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import user_cache
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.tracking import download

if TYPE_CHECKING:
    from mlflow_ngraph.tracking.download import Remote


def of(remote: Remote) -> Manifest:
    """The manifest of an engine, from this machine if it is here. Raises as `download.manifest`."""
    place = _place(remote.digest)
    if place is not None:
        with suppress(OSError):
            content = place.read_bytes()
            if hashlib.sha256(content).hexdigest() == remote.digest:
                return Manifest.parse(content, f"the manifest of {remote.shown}")
    manifest, content = download.manifest(remote)
    if place is not None:
        user_cache.keep(place, content)
    return manifest


def _place(digest: str | None) -> Path | None:
    if digest is None or len(digest) != 64 or not digest.isalnum():
        return None
    return user_cache.directory("manifests") / f"{digest}.json"
