"""The packages of this repository: the core and its plugins."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2]
PACKAGES = [_ROOT / "mlflow_ngraph", *sorted(_ROOT.glob("plugins/*/mlflow_ngraph_*"))]
