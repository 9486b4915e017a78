"""Studies that are about verdicts: measured as briefly as can be, and only where they were not measured before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.devices.fingerprint import fingerprint
from mlflow_ngraph.devices.registry import create
from mlflow_ngraph.execute import study_directories
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import Study

BRIEFLY: dict[str, Any] = {
    "repetitions": 1,
    "slice_repetitions": 1,
    "warmup": {"window": 2, "max_seconds": 0.01},
    "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
}
"""What a study says in which everything is as short as it can be but the verification."""


def measured(study: Study, home: Path | None, *, anew: bool = False) -> Path:
    """The directory of a study, which is run, or resumed, unless it came to its end before."""
    machine = fingerprint()["digest"]
    key = study_directories.study_key(study, create(study.device).name, machine)
    directory = study_directories.newest(home_directory.directory(home), key, machine)
    if anew or directory is None or study_directories.end(directory) == "open":
        return run_study(study, resume="never" if anew else "auto", home=home, offline=True).directory
    return directory
