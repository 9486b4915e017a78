"""RunningRuns: finds studies' runs that are RUNNING, tells those whose process has died, and ends these as KILLED."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

State = Literal["dead", "alive", "unknown"]
_LATEST_S = 4e9
"""Unix seconds that no sign of life is later than."""


@dataclass(frozen=True)
class RunningRun:
    """A run that is RUNNING, as far as the server knows."""

    run_id: str
    kind: str
    experiment: str
    study: str
    study_id: str
    host: str
    silent_s: float | None
    """Since its last sign of life, or that of its study; None where it never gave one."""
    state: State
    why: str


class RunningRuns:
    """Finds them on a server, and ends those that are dead. Raises `TrackingError` if the server cannot be reached.

    Without a sign of life for ``silent_s`` a run is dead. ``is_gone`` tells by the id of a study if no process runs or
    records it any more; None where this machine cannot know.
    """

    def __init__(self, tracking_uri: str, silent_s: float, is_gone: Callable[[str], bool | None]) -> None:
        self._uri = tracking_uri
        self._silent_s = silent_s
        self._is_gone = is_gone
        self._client: MlflowClient = connection.reach(tracking_uri)

    def find(self, experiments: Sequence[str] | None = None) -> list[RunningRun]:
        """Those of studies, then of lanes. Raises `UnknownNameError` if an experiment does not exist."""
        with connection.talking(self._uri, "read which runs there are", connection.RECORDING):
            names = connection.experiments(self._client, experiments)
            now = connection.server_time(self._uri)
            studies = {run.info.run_id: run for run in self._running(list(names), Kind.STUDY)}
            found = [self._judged(run, run, names, now) for run in studies.values()]
            for lane in self._running(list(names), Kind.LANE):
                parent = studies.get(lane.data.tags.get(Tag.PARENT, "")) or self._parent(lane)
                found.append(self._judged(lane, parent, names, now))
        return found

    def end(self, run: RunningRun) -> bool:
        """End a dead run as KILLED, at its last sign of life.

        Returns False where it has given another one, or ended, since, or where it is not this user's to end.
        """
        from mlflow.exceptions import MlflowException

        with connection.talking(self._uri, f"end run {run.run_id}", connection.RECORDING):
            now = self._client.get_run(run.run_id)
            parent = now if run.kind == Kind.STUDY else self._parent(now)
            current = self._judged(now, parent, {}, connection.server_time(self._uri))
            if now.info.status != "RUNNING" or current.state != "dead":
                return False
            silent = current.silent_s or 0.0
            ended = max(int(1000 * (time.time() - silent)), int(now.info.start_time))
            try:
                self._client.set_terminated(run.run_id, "KILLED", end_time=ended)
            except MlflowException as error:
                if error.error_code != connection.FORBIDDEN:
                    raise
                return False
        return True

    def _running(self, experiments: list[str], kind: str) -> list[Run]:
        if not experiments:
            return []
        query = f"attributes.status = 'RUNNING' AND tags.`{Tag.KIND}` = '{kind}'"
        return connection.every(lambda token: self._client.search_runs(experiments, query, page_token=token))

    def _parent(self, lane: Run) -> Run | None:
        """The study run of a lane; None where it is not there any more."""
        from mlflow.exceptions import MlflowException

        with suppress(MlflowException):
            return self._client.get_run(lane.data.tags.get(Tag.PARENT, ""))
        return None

    def _judged(self, run: Run, study: Run | None, names: dict[str, str], now: float) -> RunningRun:
        tags = run.data.tags
        study_id = tags.get(Tag.STUDY_ID, "")
        seen = _moment(study.data.tags.get(Tag.ALIVE_AT, "")) if study is not None else None
        silent = None if seen is None else max(0.0, now - seen)
        state, why = self._state(study_id, silent)
        return RunningRun(
            run_id=run.info.run_id,
            kind=tags.get(Tag.KIND, ""),
            experiment=names.get(run.info.experiment_id, run.info.experiment_id),
            study=tags.get(Tag.STUDY, ""),
            study_id=study_id,
            host=tags.get(Tag.HOST, ""),
            silent_s=silent,
            state=state,
            why=why,
        )

    def _state(self, study_id: str, silent_s: float | None) -> tuple[State, str]:
        gone = self._is_gone(study_id)
        if gone is not None:
            return (
                ("dead", "it is a study of this machine, and no process runs it") if gone else ("alive", "it runs here")
            )
        if silent_s is None:
            return "unknown", "it never gave a sign of life"
        if silent_s >= self._silent_s:
            return "dead", "it gave no sign of life for too long"
        return "alive", "it gave a sign of life"


def _moment(text: str) -> float | None:
    """A sign of life, which anybody may have written."""
    with suppress(ValueError):
        moment = float(text)
        if 0 < moment < _LATEST_S:
            return moment
    return None
