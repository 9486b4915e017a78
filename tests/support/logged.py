"""Engines of real compilers, compiled and logged once for all tests."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph import runner
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.schema import Tag
from tests.support.shared import once

WORKLOAD = "block:mha?width=16"
COMPILERS = ("onnxruntime", "openvino")
BATCHES = (1, 4)


@dataclass(frozen=True)
class Logged:
    """A store with a study whose engines are logged in it."""

    uri: str
    models: dict[str, str]
    """Ids of LoggedModels by compiler."""
    packages: dict[str, Path]
    """Directories of packages, as they were pulled, by compiler. Not to be changed."""

    def copy(self, compiler: str, target: Path) -> Path:
        """A package of one's own."""
        return Path(shutil.copytree(self.packages[compiler], target))


@pytest.fixture(scope="session")
def logged(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    made = once(tmp_path_factory, "logged", lambda folder: _measure(sqlite_template, folder))
    # Engines are registered and logged beside these.
    home = tmp_path_factory.mktemp("logged")
    shutil.copyfile(made / "mlflow.db", home / "mlflow.db")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri)
    found = client.search_logged_models([client.get_experiment_by_name("packages").experiment_id])
    models = {model.tags[Tag.COMPILER]: model.model_id for model in found}
    packages = {}
    for name in COMPILERS:
        packages[name] = home / "packages" / name
        download.pull(download.locate(f"models:/{models[name]}", uri), packages[name])
    return Logged(uri, models, packages)


def _measure(sqlite_template: Path, home: Path) -> None:
    """A study with its artifacts beside its database."""
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    study = parse(
        {
            "name": "packages",
            "workloads": [WORKLOAD],
            "compilers": list(COMPILERS),
            "batch_sizes": list(BATCHES),
            "repetitions": 4,
            "slice_repetitions": 2,
            "threads": 2,
            "warmup": {"window": 2, "max_seconds": 0.2},
            # What is tested here must not depend on who else uses the machine.
            "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        outcome = runner.run_study(study, home=home, tracking_uri=uri, experiment="packages")
    assert outcome.exit_code == 0, outcome.record.lanes
    assert not outcome.unrecorded
