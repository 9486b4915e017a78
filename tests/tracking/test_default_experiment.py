"""Where ``mlflow run`` of this project records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.tracking import fluent
from mlflow.tracking.default_experiment import registry

from mlflow_ngraph.tracking.default_experiment import ProjectExperiment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["/opt/bin/mlflow", "run", str(ROOT), "-e", "benchmark"], True),
        (["/opt/mlflow/__main__.py", "run", "-P", "study=smoke", str(ROOT)], True),
        (["/opt/bin/mlflow", "run", f"{ROOT}#entrypoints/xeon"], True),
        (["/opt/bin/mlflow", "run", "elsewhere"], False),
        (["/opt/bin/mlflow", "ui"], False),
        (["/opt/bin/pytest", "run", str(ROOT)], False),
    ],
)
def test_it_is_told_from_other_projects(words: list[str], ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", words)
    assert ProjectExperiment().in_context() is ours


def test_mlflow_takes_the_experiment_of_the_command(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setattr(sys, "argv", ["/opt/bin/mlflow", "run", str(ROOT)])
    known = registry.DefaultExperimentProviderRegistry()
    known.register(ProjectExperiment)
    monkeypatch.setattr(registry, "_default_experiment_provider_registry", known)
    experiment = MlflowClient().get_experiment(fluent._get_experiment_id())
    assert experiment.name == "ngraph"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "Default")
    assert MlflowClient().get_experiment(fluent._get_experiment_id()).name == "Default"


@pytest.mark.usefixtures("processes")
def test_mlflow_is_imported_without_complaints_of_plugins() -> None:
    done = subprocess.run([sys.executable, "-c", "import mlflow"], capture_output=True, text=True, check=True)
    assert "Failure attempting to register" not in done.stderr
