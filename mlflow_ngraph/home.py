"""The directory of this package: studies, shared engines, pulled engines, trust rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import platformdirs

from mlflow_ngraph.errors import UsageError

STUDY_FILE = "study.yaml"
"""In the directory of a study: the study itself, as it was asked for."""

STARTED_IN = "started-in"
"""Beside it: the directory that the study was started in, which names of its modules and files are relative to."""

IMPORTED_FROM = "imported-from"
"""Beside the journal of a study that came in an archive: the archive, and who signed it."""

_USED: ContextVar[Path | None] = ContextVar("home", default=None)


@contextmanager
def used(directory: Path) -> Iterator[None]:
    """Use a directory in place of the default one within the block."""
    token = _USED.set(directory)
    try:
        yield
    finally:
        _USED.reset(token)


def engine_store(home_directory: Path) -> Path:
    """Directory of the engines that studies share."""
    return home_directory / "engines"


def pulled_engines(home_directory: Path) -> Path:
    """Default directory of engines pulled from tracking servers."""
    return home_directory / "pulled"


def location(given: Path | None = None) -> Path:
    """Resolve the directory of all studies: ``given``, else the one in use, else ``$NGRAPH_HOME``, else the user's."""
    path = given or _USED.get() or Path(os.environ.get("NGRAPH_HOME") or platformdirs.user_data_dir("mlflow-ngraph"))
    return path.expanduser().absolute()


def own_study(study_id: str, given: Path | None = None) -> Path | None:
    """The directory of a study that was begun in this home; None of one from elsewhere, imported or not."""
    place = location(given) / "studies" / study_id
    own = "/" not in study_id and place.is_dir() and not (place / IMPORTED_FROM).exists()
    return place if own else None


def directory(given: Path | None = None) -> Path:
    """Resolve the directory as `location` does, and create it, for this user alone.

    Raises `UsageError` if it cannot be written.
    """
    studies = location(given) / "studies"
    try:
        studies.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        studies.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write studies to {studies}: {error.strerror}; choose another place with --home"
        ) from None
    if not os.access(studies, os.W_OK):
        raise UsageError(f"cannot write studies to {studies}: permission denied; choose another place with --home")
    return studies.parent
