"""The directory of this package: studies, engines that they share, pulled engines, rules of trust."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from mlflow_ngraph.errors import UsageError

STUDY_FILE = "study.yaml"
"""In the directory of a study: the study itself, as it was asked for."""

STARTED_IN = "started-in"
"""Beside it: the directory that the study was started in, which names of its modules and files are relative to."""


def engine_store(home_directory: Path) -> Path:
    """Engines that studies share."""
    return home_directory / "engines"


def pulled(home_directory: Path) -> Path:
    """Engines that were pulled from tracking servers without saying where to."""
    return home_directory / "pulled"


def location(given: Path | None = None) -> Path:
    """Where the directory that holds all studies is: ``given``, else ``$NGRAPH_HOME``, else the user's data directory."""
    path = given or Path(os.environ.get("NGRAPH_HOME") or platformdirs.user_data_dir("mlflow-ngraph"))
    return path.expanduser().absolute()


def directory(given: Path | None = None) -> Path:
    """The directory of `location`, made where it is missing.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    studies = location(given) / "studies"
    try:
        studies.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write studies to {studies}: {error.strerror}; choose another place with --home"
        ) from None
    if not os.access(studies, os.W_OK):
        raise UsageError(f"cannot write studies to {studies}: permission denied; choose another place with --home")
    return studies.parent
