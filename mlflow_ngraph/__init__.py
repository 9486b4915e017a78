"""Compile, verify, measure and record neural networks with graph compilers, in MLflow.

>>> from mlflow_ngraph import Study, run_study
>>> outcome = run_study(Study(workloads=["timm:resnet18"], compilers=["onnxruntime"], batch_sizes=[1, 8]))

Nothing is imported before it is used: a machine that only compares results needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_ngraph.errors import NGraphError, UsageError
    from mlflow_ngraph.execute.record import StudyRecord
    from mlflow_ngraph.runner import Outcome, plan_study, run_study, sync_study
    from mlflow_ngraph.study import Study
    from mlflow_ngraph.study import load as load_study
    from mlflow_ngraph.verdicts import Verdict

__version__ = "0.1.0"

__all__ = [
    "NGraphError",
    "Outcome",
    "Study",
    "StudyRecord",
    "UsageError",
    "Verdict",
    "__version__",
    "load_study",
    "plan_study",
    "run_study",
    "sync_study",
]

_HOMES = {
    "NGraphError": "errors:NGraphError",
    "Outcome": "runner:Outcome",
    "Study": "study:Study",
    "StudyRecord": "execute.record:StudyRecord",
    "UsageError": "errors:UsageError",
    "Verdict": "verdicts:Verdict",
    "load_study": "study:load",
    "plan_study": "runner:plan_study",
    "run_study": "runner:run_study",
    "sync_study": "runner:sync_study",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
