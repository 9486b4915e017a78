"""Packages on a tracking server of one's own, as they were or changed beforehand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph.engines.files import digest_files, sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE
from mlflow_ngraph.engines.package import digest_line
from mlflow_ngraph.engines.probe import FILE as PROBE
from mlflow_ngraph.tracking.download import Remote, of_model

MEGABYTE = 1 << 20


def own_files(package: Path) -> dict[str, str]:
    """Digests of what has to be as it was logged, byte for byte; a pull writes the rest anew."""
    found = digest_files(package)
    return {path: digest for path, digest in found.items() if path.startswith(("engine/", "manifest"))}


def rewrite(package: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and the digest beside it with it; another specification stands in the engine's directory too."""
    path, engine = package / "manifest.json", package / "engine"
    content = json.loads(path.read_text())
    before = json.dumps(content["spec"])
    change(content)
    if json.dumps(content["spec"]) != before:
        (engine / "spec.json").write_text(json.dumps(content["spec"]))
        content["files"]["engine/spec.json"] = sha256(engine / "spec.json")
        content["size_bytes"] = sum(file.stat().st_size for file in engine.rglob("*") if file.is_file())
        (package / "MLmodel").unlink(missing_ok=True)  # it says the former
    path.write_text(json.dumps(content))
    (package / DIGEST_FILE).write_text(digest_line(sha256(path)))


def of_another_model(package: Path) -> None:
    """Let the probe say that the model's outputs are one per cent larger than they are."""
    path = package / "engine" / PROBE
    with np.load(path) as content:
        arrays = {name: content[name] * (1.01 if name.startswith(("output", "exact")) else 1) for name in content.files}
    np.savez(path, **{name: array.astype(array.dtype) for name, array in arrays.items()})
    rewrite(package, lambda manifest: manifest["files"].update({f"engine/{PROBE}": sha256(path)}))


def padded(package: Path, sizes_mb: dict[str, int]) -> Path:
    """Add files of random bytes to the engine's own, which its runtime does not look at."""
    for name, size in sizes_mb.items():
        (package / "engine" / name).write_bytes(os.urandom(size * MEGABYTE))

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"].update({f"engine/{name}": sha256(package / "engine" / name) for name in sizes_mb})
        manifest["size_bytes"] += sum(sizes_mb.values()) * MEGABYTE

    rewrite(package, change)
    return package


def publish(package: Path, uri: str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Remote:
    """Log a package, and return where it is."""
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        info = mlflow_ngraph.log_model(package, **how)
    return of_model(MlflowClient(uri).get_logged_model(info.model_id), uri)


def directory_of(remote: Remote) -> Path:
    """Where the files of a package lie on this machine."""
    return Path(remote.location.removeprefix("file://"))
