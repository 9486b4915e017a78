"""Engines that need not be compiled, because somebody has compiled just these before.

An engine is looked for under its key on this machine, then, where the study says so, among those that others share.
Nothing here may cost a study more than a compilation: whatever is damaged, does not fit or cannot be reached is said,
and the engine is compiled.
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
    """Engines that others made, such as those on a tracking server."""

    def fetch(
        self, key: str, requires: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Manifest | None:
        """Put the files of an engine with this key into the new ``directory``, verified; None where there is none.

        Parameters
        ----------
        requires : Mapping[str, str]
            What the compiler requires here; an engine that requires anything else is left where it is.
        tell : Callable[[str], None]
            Told of engines that were found and could not be used.

        Raises
        ------
        NGraphError
            The others cannot be asked.
        """


class EngineCache:
    """Finds and keeps engines for the lanes of one study.

    Parameters
    ----------
    study : StudyRecord
        The study as it began.
    store : EngineStore
        Engines on this machine.
    shared : SharedEngines | None
        Asked for what is not on this machine.
    """

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
        """Put the engine with this key into the new directory ``target``; None where it has to be compiled.

        Parameters
        ----------
        requires : Mapping[str, str]
            What the compiler requires here.
        shared : bool
            Look beyond this machine, if the study does.
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
        """Throw away an engine that turned out to be wrong, if it is kept here."""
        if not self._store.used_at(engine.key):
            return
        self._say(lane, f"an engine in the cache is wrong, and is thrown away: {reason}")
        with suppress(OSError):
            self._store.remove(engine.key)

    def keep(self, lane: Lane, engine: EngineRecord, directory: Path) -> None:
        """Keep an engine that was compiled and verified, for others."""
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
            # Asking again for every engine would cost more than it can bring.
            self._shared = None
            self._say(lane, f"engines of others are not looked for any more: {error}")
            return None

    def _say(self, lane: Lane, reason: str) -> None:
        self._journal.append("cache_problem", lane=lane.id, reason=reason)
