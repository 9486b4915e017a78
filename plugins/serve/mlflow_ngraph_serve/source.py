"""Package to serve: a verified directory, or an engine pulled from a tracking server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.package import open_package, read_manifest, require, require_name
from mlflow_ngraph.engines.verification import verify
from mlflow_ngraph.release import consent

if TYPE_CHECKING:
    from mlflow_ngraph.engines.package import Package

    Progress = Callable[[int, int], None]


def is_directory(source: str) -> bool:
    """Test if a package on this machine is meant, rather than one on a server. Raises `UsageError` for an empty text."""
    require_name(source)
    return Path(source).is_dir() or ":" not in source


def obtain(
    source: str,
    tracking_uri: str | None = None,
    trust: str | None = None,
    progress: Progress | None = None,
    *,
    run: bool = False,
) -> Package:
    """A package on this machine that is trusted and complete, fits the machine, and computes the same as its model.

    Parameters
    ----------
    source : str
        A directory, or a source for `pull_engine`, which is pulled to its usual place unless it is there.
    run : bool
        Let a program run although no rule allows it.

    Raises
    ------
    UsageError
        The directory is no engine package.
    EngineError
        It is not trusted, damaged, does not fit, or computes something else.
    TrackingError
        The server cannot be reached, or knows no such engine.
    """
    if is_directory(source):
        require(Path(source))
        return proven(Path(source), trust, run=run)
    from mlflow_ngraph.release.pulling import pull_engine

    return pull_engine(source, tracking_uri=tracking_uri, trust=trust, progress=progress, run=run).package


def proven(directory: Path, trust: str | None = None, *, run: bool = False) -> Package:
    """The package in a directory, after every check; nothing of it runs unless the rules trust it.

    Raises
    ------
    EngineError
        One of them finds a problem.
    """
    package = read_manifest(directory)
    consent.require_package(package, directory, trusting.load(trust), run=run)
    verify(directory, package.digest).require()
    return package


def whole(directory: Path, trust: str | None = None) -> Package:
    """The package in a directory, trusted, and with every file compared with its digest; whether it fits is left open.

    Raises
    ------
    EngineError
        It is not trusted, or damaged.
    """
    package = read_manifest(directory)
    trusting.require_package(package, directory, trusting.load(trust))
    return open_package(directory, package.digest)


def default_name(package: Package) -> str:
    """Default name of an engine: its model's label."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", package.manifest.origin.label).strip("-._")
    return label[:100] or "engine"
