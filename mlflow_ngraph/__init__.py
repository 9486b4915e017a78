"""Compile, verify, measure and record neural networks with graph compilers, in MLflow.

>>> from mlflow_ngraph import Study, run_study
>>> outcome = run_study(Study(workloads=["timm:resnet18"], compilers=["onnxruntime"], batch_sizes=[1, 8]))

Nothing is imported before it is used: a machine that only compares results needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.version import __version__

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.results import load as load_results
    from mlflow_ngraph.engines.local_engine import LoadedEngine
    from mlflow_ngraph.errors import EngineError, NGraphError, UsageError
    from mlflow_ngraph.execute.record import StudyRecord
    from mlflow_ngraph.recording.from_journal import sync_study
    from mlflow_ngraph.recording.outcome import Outcome
    from mlflow_ngraph.release.flavor import load_model, log_model, save_model
    from mlflow_ngraph.release.pulling import pull_engine as pull
    from mlflow_ngraph.runner import plan_study, run_study
    from mlflow_ngraph.study import Study
    from mlflow_ngraph.study import load as load_study
    from mlflow_ngraph.verdicts import Verdict
    from mlflow_ngraph.workloads.live import Live

__all__ = [
    "EngineError",
    "Live",
    "LoadedEngine",
    "NGraphError",
    "Outcome",
    "Study",
    "StudyRecord",
    "UsageError",
    "Verdict",
    "__version__",
    "load_model",
    "load_results",
    "load_study",
    "log_model",
    "plan_study",
    "pull",
    "run_study",
    "save_model",
    "sync_study",
]

_HOMES = {
    "EngineError": "errors:EngineError",
    "Live": "workloads.live:Live",
    "LoadedEngine": "engines.local_engine:LoadedEngine",
    "NGraphError": "errors:NGraphError",
    "Outcome": "recording.outcome:Outcome",
    "Study": "study:Study",
    "StudyRecord": "execute.record:StudyRecord",
    "UsageError": "errors:UsageError",
    "Verdict": "verdicts:Verdict",
    "load_results": "analysis.results:load",
    "load_model": "release.flavor:load_model",
    "load_study": "study:load",
    "log_model": "release.flavor:log_model",
    "plan_study": "runner:plan_study",
    "pull": "release.pulling:pull_engine",
    "run_study": "runner:run_study",
    "save_model": "release.flavor:save_model",
    "sync_study": "recording.from_journal:sync_study",
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
