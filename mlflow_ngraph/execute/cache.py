"""EngineCache: takes a study's engines by key from this machine or others, keeps verified ones, drops wrong ones.

No failure here may cost a study more than a compilation: damaged, unfitting or unreachable engines are reported and
compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY, Manifest
from mlflow_ngraph.engines.store import EngineStore
from mlflow_ngraph.errors import EngineError, NGraphError
from mlflow_ngraph.execute import packaging
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.record import EngineRecord, Lane, LaneRecord, StudyRecord


class SharedEngines(Protocol):
    """Engines of others, such as those on a tracking server."""

    def fetch(
        self, key: str, requires: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Manifest | None:
        """Put the verified files of an engine into the new ``directory``; None when there is none.

        ``requires`` are the requirements of the compiler here: engines with others are skipped. ``tell`` is called with
        the reason for each unusable engine. Raises `NGraphError` if the others cannot be reached.
        """


class EngineCache:
    """Finds and keeps engines for the lanes of one study. What this machine lacks is looked for in ``shared``."""

    def __init__(
        self, journal: Journal, study: StudyRecord, store: EngineStore, shared: SharedEngines | None = None
    ) -> None:
        self._journal = journal
        self._study = study
        self._store = store
        self._shared = shared

    def take(
        self, lane: Lane, key: str, requires: Mapping[str, str], target: Path, *, shared: bool = True
    ) -> Manifest | None:
        """Put an engine into the new directory ``target``; None when it has to be compiled.

        ``requires`` are the requirements of the compiler here. ``shared``: also search beyond this machine, if the
        study does.
        """
        stored = self._local(lane, key) or (self._pull(lane, key, requires) if shared else None)
        if stored is None:
            return None
        try:
            self._store.place(stored, target)
        except OSError as error:
            self._say(lane, f"an engine could not be taken from the cache: {error}")
            return None
        return stored

    def forget(self, lane: Lane, engine: EngineRecord, reason: str) -> None:
        """Remove a wrong engine from the store."""
        if not self._store.used_at(engine.key):
            return
        self._say(lane, f"an engine in the cache is wrong, and is thrown away: {reason}")
        with suppress(OSError):
            self._store.remove(engine.key)

    def keep(self, lane: Lane, engine: EngineRecord, directory: Path) -> None:
        """Add a compiled and verified engine to the store."""
        try:
            manifest = packaging.manifest(self._study, LaneRecord(lane, [engine]), engine, EngineSpec.read(directory))
            self._store.add(manifest, directory)
        except (EngineError, OSError) as error:
            self._say(lane, f"an engine could not be kept in the cache: {error}")

    def _local(self, lane: Lane, key: str) -> Manifest | None:
        try:
            return self._store.find(key)
        except (EngineError, OSError) as error:
            self._say(lane, f"an engine in the cache is damaged, and is thrown away: {error}")
            with suppress(OSError):
                self._store.remove(key)
            return None

    def _pull(self, lane: Lane, key: str, requires: Mapping[str, str]) -> Manifest | None:
        if self._shared is None:
            return None
        try:
            with self._store.staging() as directory:
                stored = self._shared.fetch(
                    key, requires, directory / ENGINE_DIRECTORY, lambda text: self._say(lane, text)
                )
                if stored is not None:
                    self._store.publish(stored, directory)
                return stored
        except (NGraphError, OSError) as error:
            # One timeout per engine would cost more than the cache can save.
            self._shared = None
            self._say(lane, f"engines of others are not looked for any more: {error}")
            return None

    def _say(self, lane: Lane, reason: str) -> None:
        self._journal.append("cache_problem", lane=lane.id, reason=reason)
