"""State of a follower on disk: engines, the good one, and the version not to be tried again.

A record names the good engine and is replaced as a whole; the link ``current`` leads to the same. What a crash leaves
belongs to nobody, and is removed by the next start.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

from mlflow_ngraph.errors import UsageError
from mlflow_ngraph_serve.following.followed import Champion

CURRENT = "current"
"""Link to the package of the good engine."""
_RECORD, _ENGINES, _LOCK = "state.json", "engines", ".lock"


@dataclass(frozen=True)
class KeptEngine:
    """An engine of a version, whole and proven when it came."""

    version: str
    model_id: str
    digest: str
    """Digest of its package's manifest."""
    directory: str

    @property
    def champion(self) -> Champion:
        return Champion(self.version, self.model_id)


@dataclass(frozen=True)
class RefusedVersion:
    """A version that is not tried again until the alias has pointed at another one."""

    version: str
    model_id: str
    reason: str
    at: float
    """Unix seconds."""

    @property
    def champion(self) -> Champion:
        return Champion(self.version, self.model_id)


class FollowerState:
    """The directory of a follower.

    Attributes
    ----------
    good, before, refused: the engine that has proven itself, the one that was that before, and the version that was refused
        last, as long as it is not to be tried again.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.good: KeptEngine | None = None
        self.before: KeptEngine | None = None
        self.refused: RefusedVersion | None = None

    @contextmanager
    def held(self) -> Iterator[str]:
        """Read the state, and lock it against other processes.

        Yields
        ------
        str
            Problem of the record, which is then begun anew; mostly none.

        Raises
        ------
        UsageError
            The directory cannot be written, or another process has it.
        """
        try:
            (self.directory / _ENGINES).mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.directory / _LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"another process follows this alias with {self.directory}: end it, or choose another directory with --to"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot keep engines at {self.directory}: {error.strerror}") from None
        try:
            problem = self._read()
            self._sweep()
            yield problem
        finally:
            lock.release()

    @property
    def current(self) -> Path:
        """Link to the package of the good engine."""
        return self.directory / CURRENT

    def place(self, champion: Champion) -> Path:
        """Directory of a version's engine."""
        return self.directory / _ENGINES / f"{champion.version}-{champion.model_id[-8:]}"

    def keep(self, engine: KeptEngine) -> None:
        """Make this engine the good one."""
        if engine != self.good:
            replaced, self.before, self.good = self.before, self.good, engine
            self._write()
            if replaced is not None:
                self._discard(Path(replaced.directory))
        self._link(Path(engine.directory))

    def refuse(self, champion: Champion, reason: str) -> None:
        """Do not try this version again until the alias has pointed at another one."""
        self.refused = RefusedVersion(champion.version, champion.model_id, reason, time.time())
        self._write()
        self._discard(self.place(champion))

    def forgive(self) -> None:
        """Forget the refusal, since the alias has moved: the version may be tried when it moves back."""
        if self.refused is not None:
            self.refused = None
            self._write()

    def _discard(self, place: Path) -> None:
        """Remove an engine, unless it is one of those that are kept."""
        if str(place) not in self._needed():
            shutil.rmtree(place, ignore_errors=True)

    def _needed(self) -> set[str]:
        return {engine.directory for engine in (self.good, self.before) if engine is not None}

    def _read(self) -> str:
        path = self.directory / _RECORD
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            good, before, refused = content["good"], content["before"], content["refused"]
            self.good = KeptEngine(**good) if good else None
            self.before = KeptEngine(**before) if before else None
            self.refused = RefusedVersion(**refused) if refused else None
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, TypeError, LookupError) as error:
            return f"{path} is not readable, and begun anew: {error}"
        return ""

    def _write(self) -> None:
        content = {
            name: None if entry is None else asdict(entry)
            for name, entry in (("good", self.good), ("before", self.before), ("refused", self.refused))
        }
        passing = self.directory / f".{_RECORD}.{uuid4().hex}"
        with passing.open("w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        passing.replace(self.directory / _RECORD)

    def _link(self, target: Path) -> None:
        """Let ``current`` lead to another package, in one step."""
        passing = self.directory / f".{CURRENT}.{uuid4().hex}"
        passing.symlink_to(os.path.relpath(target, self.directory))
        passing.replace(self.current)

    def _sweep(self) -> None:
        """Remove the remains of an earlier process: unnamed engines, and partial records and links."""
        for engine in (self.directory / _ENGINES).iterdir():
            # A hidden one is on its way here, and is gone on with.
            if not engine.name.startswith(".") and str(engine) not in self._needed():
                shutil.rmtree(engine, ignore_errors=True)
        for passing in (*self.directory.glob(f".{_RECORD}.*"), *self.directory.glob(f".{CURRENT}.*")):
            with suppress(OSError):
                passing.unlink()
