"""The environment variables of a process that runs an engine."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.execute import child


def environment(manifest: Manifest, scratch: Path) -> dict[str, str]:
    """Those that a study measures with: no thread or runtime settings but the engine's own.

    Parameters
    ----------
    scratch: for what runtimes keep beside.
    """
    return child.environment(manifest.loading.aim().threads, scratch)
