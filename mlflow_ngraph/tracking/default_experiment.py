"""Default experiment of ``mlflow run`` on this package's project."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mlflow.tracking.default_experiment.abstract_context import DefaultExperimentProvider

_NAME = "name: mlflow-ngraph"
"""First characters of the line that tells our ``MLproject``, and those of its devices, from others."""


class ProjectExperiment(DefaultExperimentProvider):  # type: ignore[misc]  # MLflow gives the base no types
    """Default experiment of studies (entry-point group ``mlflow.default_experiment_provider``).

    MLflow makes the run of a project before the project begins, and runs cannot be moved.
    """

    def in_context(self) -> bool:
        """True if this process is ``mlflow run`` on a checkout of this package."""
        return _runs_project(sys.argv)

    def get_experiment_id(self) -> str:
        """The id of the experiment of the command, which is made where there is none."""
        # MLflow imports this module before it has a client.
        from mlflow import MlflowClient

        from mlflow_ngraph.tracking import schema
        from mlflow_ngraph.tracking.study_run import StudyRuns

        client = MlflowClient()
        runs = StudyRuns(client, client.tracking_uri, schema.DEFAULT_EXPERIMENT)
        return str(runs.experiment().experiment_id)


def _runs_project(arguments: Sequence[str]) -> bool:
    """Test if a command line is ``mlflow run`` with a folder of our project among its words."""
    program, *words = arguments
    if "mlflow" not in Path(program).parts[-2:] or "run" not in words:
        return False
    files = (Path(word.partition("#")[0], "MLproject") for word in words[words.index("run") + 1 :])
    return any(file.is_file() and file.read_text(encoding="utf-8").startswith(_NAME) for file in files)
