"""Cache of findings of child processes about library workloads (fixed batch size), by release of the library.

Asking the library takes its import, several seconds before a study or plan.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mlflow_ngraph import user_cache
from mlflow_ngraph.version import __version__
from mlflow_ngraph.workloads.base import Workload


def recall(workload: Workload) -> dict[str, Any] | None:
    """Findings about a workload; None when unknown or possibly changed."""
    place = _place(workload)
    if place is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        fixed_batch = json.loads(place.read_bytes())["fixed_batch"]
        return {"label": workload.label, "family": workload.family, "fixed_batch": fixed_batch}
    return None


def keep(workload: Workload, found: dict[str, Any]) -> None:
    """Store findings about a workload."""
    place = _place(workload)
    if place is not None:
        user_cache.keep(place, json.dumps({"fixed_batch": found["fixed_batch"]}).encode())


def _place(workload: Workload) -> Path | None:
    if workload.catalogue is None:
        return None
    try:
        release = version(workload.catalogue)
    except PackageNotFoundError:
        return None
    identity = [__version__, workload.catalogue, release, str(workload.ref), asdict(workload.init)]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return user_cache.directory("workloads") / f"{name}.json"
