"""The surroundings of a process that runs an engine: its variables, its memory, its torchvision."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph import process_memory, torchvision_hook
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.processes.environment import of_threads


def of_manifest(manifest: Manifest, scratch: Path) -> dict[str, str]:
    """Those that a study measures with: no thread or runtime settings but the engine's own.

    Parameters
    ----------
    scratch : Path
        For what runtimes keep beside.
    """
    return of_threads(manifest.spec.target.threads, scratch)


def enter() -> None:
    """Keep freed memory from now on, as studies do unless they say otherwise; elsewhere than on glibc nothing changes.

    What the engine imports finds a torchvision that can be imported, as in a study.
    """
    process_memory.keep_freed()
    torchvision_hook.install()
