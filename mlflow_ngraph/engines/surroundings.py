"""What a process that runs an engine has around it: environment variables, and how memory is kept."""

from __future__ import annotations

from pathlib import Path

from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.execute import child
from mlflow_ngraph.measure import memory


def environment(manifest: Manifest, scratch: Path) -> dict[str, str]:
    """Those that a study measures with: no thread or runtime settings but the engine's own.

    Parameters
    ----------
    scratch: for what runtimes keep beside.
    """
    return child.environment(manifest.loading.aim().threads, scratch)


def enter() -> None:
    """Keep freed memory from now on, as studies do unless they say otherwise; elsewhere than on glibc nothing changes.

    What the engine imports finds a torchvision that can be imported, as in a study.
    """
    memory.keep_freed()
    torchvision_hook.install()
