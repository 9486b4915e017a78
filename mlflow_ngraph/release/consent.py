"""Require consent before an engine that is a program is loaded: by a rule, by origin, or by the user, remembered.

An engine of some compilers runs with the rights of who loads it. It is loaded where a rule allows it, where this home has
compiled it, or where the user has said so once.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.files import is_plain
from mlflow_ngraph.engines.trust import FILE
from mlflow_ngraph.engines.trust import require_package as require_trust
from mlflow_ngraph.errors import EngineError, JournalError
from mlflow_ngraph.execute import journal

if TYPE_CHECKING:
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph.engines.trust import Rules, Trusted

_CONSENTED = "consented"
"""Directory in the home with an empty file for each program that the user let run, named by the digest of its manifest."""


def kind(manifest: Manifest) -> str:
    """Say in one line whether an engine is a program."""
    program = compatibility.program(manifest.spec.compiler)
    return f"it contains {program}, which runs with your rights" if program else "its files are data for a runtime"


def require(manifest: Manifest, digest: str, trusted: Trusted, run: bool, home: str | Path | None = None) -> None:
    """Require consent to load an engine whose trust was checked; ``run`` gives it, and is remembered in ``home``.

    Raises `EngineError` if the engine is a program, and neither a rule nor the user has allowed it.
    """
    if trusted.by_rule or not compatibility.program(manifest.spec.compiler):
        return
    place = home_directory.location(None if home is None else Path(home))
    mark = place / _CONSENTED / digest
    if run:
        with suppress(OSError):  # it is asked for again
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch()
    elif not mark.is_file() and not _compiled_here(manifest, place):
        raise EngineError(
            f"{manifest.shown}: {kind(manifest)}, and no rule allows it: to run it give --run (run=True), or say whom you "
            f"trust in {place / FILE}"
        )


def require_package(
    package: Package, source: str | Path, rules: Rules, run: bool, home: str | Path | None = None
) -> None:
    """Require trust and consent before a package is loaded. Raises `EngineError` as `trust.require` and `require`."""
    require(package.manifest, package.digest, require_trust(package, source, rules), run, home)


def _compiled_here(manifest: Manifest, home: Path) -> bool:
    """True if a study of this home, not an imported one, has compiled the very files, and not taken them from a server."""
    name = manifest.origin.study_id
    study = home_directory.own_study(name, home) if is_plain(name) else None
    if study is None:
        return False
    with suppress(JournalError, OSError):
        return any(
            event["event"] == "engine_built"
            and event.get("files") == manifest.engine_files()
            and not (event.get("reused") or {}).get("tracking_uri")
            for event in journal.read(study)
        )
    return False
