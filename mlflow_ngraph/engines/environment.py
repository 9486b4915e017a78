"""Environment of a process that runs an engine: variables, memory, torchvision."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph import process_memory, torchvision_hook
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.processes.environment import of_threads


def variables(manifest: Manifest, scratch: Path) -> dict[str, str]:
    """Variables that a study measures with: no thread or runtime settings but the engine's own."""
    return of_threads(manifest.spec.target.threads, scratch)


def prepare_process() -> None:
    """Keep freed memory as studies do by default, and install the torchvision hook.

    Elsewhere than on glibc, freed memory is not kept.
    """
    process_memory.keep_freed()
    torchvision_hook.install()
