"""Lanes of a race without processes: each takes as long as it is told, and writes what a lane writes into the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane_progress import Loaded
from mlflow_ngraph.execute.record import EngineRecord, Lane
from mlflow_ngraph.measure.stability import SliceFacts
from mlflow_ngraph.processes.child import ChildFailure
from mlflow_ngraph.study import Study
from mlflow_ngraph.verdicts import Verdict

Seconds = Callable[[int, int], float]
"""Of one inference, by batch size and by how many slices the lane has taken."""


def lane(name: str, batch_sizes: tuple[int, ...]) -> Lane:
    return Lane(name, "w", "model", "f", name, name, {}, "fp32", "sync", 1, "host", batch_sizes)


class ScriptedLane:
    """Does what the runner of a lane does, as far as a race asks for it."""

    def __init__(
        self,
        study: Study,
        journal: Journal,
        name: str,
        seconds: Seconds,
        *,
        session: int = 1,
        size_mb: float = 1.0,
        problem: str | None = None,
        gigabytes: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.lane = lane(name, tuple(study.batch_sizes))
        engine = EngineRecord(
            id="e", lane=name, batch_sizes=self.lane.batch_sizes, directory="engines", files={}, flags={}, requires={},
            key="k", stages={}, built_beside=0, size_bytes=int(size_mb * 1e6), at=0.0,
        )  # fmt: skip
        self.engines = dict.fromkeys(study.batch_sizes, engine)
        self.loaded: Loaded | None = None
        self.session = session
        self.evicted: list[int] = []
        self.fails_at: int | None = None
        """The slice that fails, counting from 0."""
        self._study, self._journal, self._seconds = study, journal, seconds
        self._problem, self._gigabytes = problem, gigabytes
        self._rng = np.random.default_rng([seed, *name.encode()])
        self._taken = 0
        self._family: list[ScriptedLane] = [self]

    def twin(self) -> ScriptedLane:
        other = object.__new__(ScriptedLane)
        other.__dict__.update(self.__dict__)
        other.loaded = None
        self._family.append(other)
        return other

    @property
    def slices(self) -> int:
        """Taken by the lane and its twins."""
        return sum(member._taken for member in self._family)

    def start(self) -> None:
        """There is no process."""

    def too_slow(self, batch: int) -> str:
        return ""

    def expected_bytes(self, batch: int) -> int:
        return int(self._gigabytes * 1e9)

    def load(self, batch: int, *, continued: bool = False) -> None:
        assert self.loaded is None, "one engine a process"
        cell = self.lane.cell(batch)
        fields = {
            "engine": "e",
            "requests": 1,
            "load_s": 0.0,
            "first_inference_s": 0.0,
            "precision": "fp32",
            "flags": {},
        }
        self._journal.append("cell_ready", cell=cell, lane=self.lane.id, batch=batch, continued=continued, **fields)
        self.loaded = Loaded(batch, self._problem, "", self._seconds(batch, 0))

    def warm_up(self) -> None:
        assert self.loaded is not None
        self.loaded.warm_up = {"call_s": self.loaded.first_call_s, "fastest_s": self.loaded.first_call_s}

    def renew(self) -> bool:
        return False

    def slice(self, round_: int, position: int, *, companion: bool) -> dict[str, Any]:
        loaded = self.loaded
        assert loaded is not None
        if self._taken == self.fails_at:
            raise ChildFailure(Verdict.CRASHED, "killed by SIGSEGV during slice")
        seconds = self._seconds(loaded.batch, self._taken) * float(np.exp(self._rng.normal(0, 0.01)))
        self._taken += 1
        durations = [int(seconds * 1e9)] * loaded.slice_repetitions(self._study)
        taken: dict[str, Any] = {
            "durations_ns": durations,
            "wall_s": sum(durations) / 1e9,
            "peak_bytes": 10**8,
            "started_ns": 0,
        }
        loaded.durations.append(np.asarray(durations, float))
        loaded.slices.append(SliceFacts(seconds, taken["wall_s"]))
        self._journal.append(
            "slice",
            cell=self.lane.cell(loaded.batch),
            lane=self.lane.id,
            session=self.session,
            round=round_,
            position=position,
            companion=companion,
            **taken,
        )
        return taken

    def wants_more(self, *, accompanying: bool = False) -> bool:
        assert self.loaded is not None
        return self.loaded.wants_more(self._study, accompanying=accompanying)

    def evict(self, batch: int, reason: str) -> None:
        self.evicted.append(batch)

    def unload(self) -> None:
        self.loaded = None

    def close(self) -> None:
        self.loaded = None
