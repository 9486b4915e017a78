"""The entry points of pyproject.toml made known to this process and its children, whatever the installed package says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GROUP = "mlflow.project_backend"


def plug_in(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a distribution on the import path that has the entry points of the group.

    Parameters
    ----------
    site : Path
        An empty directory.
    monkeypatch : pytest.MonkeyPatch
        Undoes it.
    """
    content = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    points = content["project"]["entry-points"][GROUP]
    info = site / "plugged_ngraph-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-ngraph\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {target}" for name, target in points.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
    monkeypatch.syspath_prepend(str(site))
    paths = [str(site), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
