"""List study runs of tracking servers with their tags, find deleted lane runs, and download files of runs.

Speed matters here: users wait for it before cached results can be shown. Plain servers and SQLite files are queried
directly, because importing MLflow takes longer than the answer. All others go through MLflow's client, which knows
about permissions and workspaces.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import addresses, documents
from mlflow_ngraph.errors import require_known
from mlflow_ngraph.tracking import artifact_stores, connection, plain_http, sqlite_file
from mlflow_ngraph.tracking.schema import Artifact, Kind, Tag

if TYPE_CHECKING:
    import requests
    from mlflow import MlflowClient
    from mlflow.entities import Run

GIT_COMMIT, USER = "mlflow.source.git.commit", "mlflow.user"
PARALLEL = 8
"""Files read concurrently."""
_TIMEOUT = 30.0
_PAGE = 1000
_RUNS_AT_ONCE = 10_000
"""Page size. MLflow repeats the database query for each page."""
_ASKED_AT_ONCE = 100
"""Most runs in one request; servers refuse more."""
_IN_EVERY_LANE = "cells_total"
"""A metric of every lane run. Reading whole runs would be slow."""
_HISTORIES = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STUDIES = f"tags.`{Tag.KIND}` = '{Kind.STUDY}'"
_LANES = f"tags.`{Tag.KIND}` = '{Kind.LANE}'"


@dataclass(frozen=True)
class ListedRun:
    """A study run that is neither deleted nor taken over by another one."""

    run_id: str
    experiment: str
    experiment_id: str
    artifact_uri: str
    tags: dict[str, str] = field(default_factory=dict)
    started_ms: int = 0

    @property
    def digest(self) -> str:
        """sha256 of the results table; empty if not recorded, or no sha256."""
        text = self.tags.get(Tag.RESULTS_SHA256, "")
        return text if _SHA256.fullmatch(text) else ""


class Server:
    """A tracking server as a source of study runs; MLflow's default when left out."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = connection.resolve_uri(tracking_uri)
        self._client: MlflowClient | None = None
        self._session: requests.Session | None = None

    @property
    def name(self) -> str:
        """Address without passwords."""
        return addresses.shown(self.uri)

    @property
    def client(self) -> MlflowClient:
        """MlflowClient of a server that has answered."""
        if self._client is None:
            self._client = connection.reach(self.uri)
        return self._client

    def study_runs(self) -> list[ListedRun]:
        """All study runs of all experiments, unordered."""
        runs = self._from_file()
        if runs is None:
            runs = self._from_rest()
        if runs is None:
            runs = self._from_client()
        return [run for run in runs if Tag.RESUMED_BY not in run.tags]

    def experiments(self) -> list[str]:
        """Names of all experiments that are not deleted."""
        with self.talking():
            return list(connection.experiments(self.client).values())

    def study_run(self, run_id: str) -> ListedRun:
        """Find a study run by its id or by the id of a lane run. Raises `TrackingError` if there is none."""
        with self.talking():
            run = study_run(self.client, run_id)
            return _of_client(run, self.client.get_experiment(run.info.experiment_id).name)

    def results_without_mlflow(self, run: ListedRun) -> bytes | None:
        """Read a results table without MLflow's client; None if that is impossible."""
        return self.file_without_mlflow(run, Artifact.RESULTS) if run.digest else None

    def file_without_mlflow(self, run: ListedRun, name: str) -> bytes | None:
        """Read a file of a run without MLflow's client; None if that is impossible, or it has none."""
        content = _local(run.artifact_uri, name)
        return self._proxied(run.artifact_uri, name) if content is None else content

    def results(self, run: ListedRun) -> bytes | None:
        """Read a results table; None before the study has written one.

        Call it within `talking`, and `reload` as well.
        """
        if Artifact.RESULTS not in artifact_stores.run_files(self.client, run.run_id, run.artifact_uri, self.uri):
            return None
        return artifact_stores.run_file(run.artifact_uri, Artifact.RESULTS, self.uri)

    def reload(self, run: ListedRun) -> ListedRun:
        return _of_client(self.client.get_run(run.run_id), run.experiment)

    def deleted(self, lane_runs: Collection[str], experiment_ids: Collection[str]) -> frozenset[str]:
        """Lane runs in MLflow's trash, or removed by ``mlflow gc``.

        A run replaced by another one of its lane is not included. Its study's table is about to name the new one.
        """
        path = sqlite_file.of(self.uri)
        if path is not None:
            with suppress(sqlite3.Error):
                return sqlite_file.deleted(path, lane_runs)
        if plain_http.speaks(self.uri):
            with plain_http.excused():
                return self._deleted(lane_runs, self._trash_by_rest(experiment_ids), self._existing_by_rest)
        with self.talking():
            existing = self._existing_by_client if connection.is_server(self.uri) else self._existing_by_database
            return self._deleted(lane_runs, self._trash_by_client(experiment_ids), existing)

    def _deleted(
        self, lane_runs: Collection[str], trash: Sequence[ListedRun], existing: Callable[[Sequence[str]], list[str]]
    ) -> frozenset[str]:
        gone = {run.run_id for run in trash if Tag.RESUMED_BY not in run.tags}.intersection(lane_runs)
        asked = sorted({*lane_runs} - {run.run_id for run in trash})
        parts = [asked[start : start + _ASKED_AT_ONCE] for start in range(0, len(asked), _ASKED_AT_ONCE)]
        with ThreadPoolExecutor(PARALLEL) as pool:
            there = {run_id for found in pool.map(existing, parts) for run_id in found}
        return frozenset(gone | {run_id for run_id in asked if run_id not in there and self._is_deleted(run_id)})

    def _trash_by_rest(self, experiment_ids: Collection[str]) -> list[ListedRun]:
        asked = {"experiment_ids": [*experiment_ids], "filter": _LANES, "run_view_type": "DELETED_ONLY"}
        return [_of_json(run, dict.fromkeys(experiment_ids, "")) for run in self._search("runs", asked)]

    def _trash_by_client(self, experiment_ids: Collection[str]) -> list[ListedRun]:
        from mlflow.entities import ViewType

        ids, stage = [*experiment_ids], ViewType.DELETED_ONLY
        runs: list[Run] = connection.every(
            lambda token: self.client.search_runs(ids, _LANES, stage, _RUNS_AT_ONCE, page_token=token)
        )
        return [_of_client(run, "") for run in runs]

    def _existing_by_rest(self, lane_runs: Sequence[str]) -> list[str]:
        """Existing runs by REST, if the server accepts so many ids."""
        asked = {"run_id": lane_runs, "metric_key": _IN_EVERY_LANE}
        answer = self._http().get(self._base + _HISTORIES, params=asked, timeout=_TIMEOUT)
        return [point["run_id"] for point in answer.json()["metrics"]] if answer.ok else []

    def _existing_by_client(self, lane_runs: Sequence[str]) -> list[str]:
        asked = {"run_id": lane_runs, "metric_key": _IN_EVERY_LANE}
        answer = connection.get(self.uri, _HISTORIES, asked)
        return [point["run_id"] for point in answer.json()["metrics"]] if answer.status_code == 200 else []

    def _existing_by_database(self, lane_runs: Sequence[str]) -> list[str]:
        from mlflow.tracking._tracking_service.utils import _get_store

        points = _get_store(self.uri).get_metric_history_bulk([*lane_runs], _IN_EVERY_LANE, _RUNS_AT_ONCE)
        return [point.run_id for point in points]

    def _is_deleted(self, run_id: str) -> bool:
        with self.talking():
            return connection.is_deleted(self.client, run_id)

    def _from_file(self) -> list[ListedRun] | None:
        path = sqlite_file.of(self.uri)
        with suppress(sqlite3.Error):
            return None if path is None else [ListedRun(**vars(row)) for row in sqlite_file.study_runs(path)]
        return None

    def _from_rest(self) -> list[ListedRun] | None:
        if not plain_http.speaks(self.uri):
            return None
        with plain_http.excused():
            names = {experiment["experiment_id"]: experiment["name"] for experiment in self._search("experiments", {})}
            asked = {"experiment_ids": list(names), "filter": _STUDIES}
            return [_of_json(run, names) for run in (self._search("runs", asked) if names else ())]
        return None

    def _search(self, what: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        token = None
        while True:
            page = {**asked, "max_results": _PAGE, **({"page_token": token} if token else {})}
            answer = self._http().post(f"{self._base}/api/2.0/mlflow/{what}/search", json=page, timeout=_TIMEOUT)
            answer.raise_for_status()
            content = answer.json()
            entries += content.get(what, [])
            token = content.get("next_page_token")
            if not token:
                return entries

    def _proxied(self, artifact_uri: str, name: str) -> bytes | None:
        address = plain_http.artifact_address(self.uri, f"{artifact_uri}/{name}")
        if address is None:
            return None
        from requests import RequestException

        from mlflow_ngraph.tracking import answer_limits

        with suppress(RequestException), self._http().get(address, timeout=_TIMEOUT, stream=True) as answer:
            if answer.ok:
                pieces = answer_limits.pieces(answer, _TIMEOUT)
                return b"".join(islice(pieces, artifact_stores.MOST_OF_RUN // answer_limits.PIECE))
        return None

    @property
    def _base(self) -> str:
        return self.uri.rstrip("/")

    def _http(self) -> requests.Session:
        if self._session is None:
            self._session = plain_http.session(PARALLEL)
        return self._session

    def _from_client(self) -> list[ListedRun]:
        with self.talking():
            names = connection.experiments(self.client)
            runs: list[Run] = connection.every(
                lambda token: self.client.search_runs(
                    list(names), _STUDIES, max_results=_RUNS_AT_ONCE, page_token=token
                )
            )
        return [_of_client(run, names[run.info.experiment_id]) for run in runs]

    def talking(self) -> AbstractContextManager[None]:
        """Context for MLflow's client that turns failures into a `TrackingError` of one line."""
        self._client = self._client or connection.reach(self.uri)
        return connection.talking(self.uri, "read results", connection.RECORDING)


@dataclass(frozen=True)
class FoundRuns:
    """Study runs of one or several tracking servers."""

    servers: tuple[Server, ...]
    runs: dict[str, list[ListedRun]]
    """Runs by the address of the server."""
    every: dict[str, list[ListedRun]] = field(default_factory=dict)
    """All runs, where they are known, by the address of the server."""
    notes: list[str] = field(default_factory=list)
    """Remarks for readers, such as runs left out. Reading results adds more."""
    lanes: dict[str, list[str]] = field(default_factory=dict)
    """Lane runs of the results, by server name; filled when results are read."""
    withdrawn: dict[str, list[str]] = field(default_factory=dict)
    """Deleted lane runs among them."""

    def deleted(self, lanes: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """Find the deleted ones among lane runs; both are by server name."""
        return {
            server.name: sorted(server.deleted(asked, {run.experiment_id for run in self.runs[server.uri]}))
            for server in self.servers
            if (asked := lanes.get(server.name))
        }


def find(
    tracking_uri: str | Sequence[str] | None = None, experiments: Sequence[str] | None = None, run: str | None = None
) -> FoundRuns:
    """Find study runs.

    One server or several are searched, MLflow's default when left out, for experiments by name, all when left out.
    ``run`` is a study run or lane run to read alone. Raises `UnknownNameError` if an experiment does not exist, and
    `TrackingError` if a server cannot be reached.
    """
    uris = [tracking_uri] if tracking_uri is None or isinstance(tracking_uri, str) else list(tracking_uri)
    servers = tuple(Server(uri) for uri in uris)
    if run is not None:
        return FoundRuns(servers, {server.uri: [server.study_run(run)] for server in servers})
    by_server = {server.uri: server.study_runs() for server in servers}
    if experiments is None:
        return FoundRuns(servers, by_server, by_server)
    missing = set(experiments) - {listed.experiment for runs in by_server.values() for listed in runs}
    if missing:
        known = {name for server in servers for name in server.experiments()}
        require_known("experiment", sorted(missing), known)
    kept = {uri: [listed for listed in runs if listed.experiment in experiments] for uri, runs in by_server.items()}
    return FoundRuns(servers, kept, by_server)


def study_run(client: MlflowClient, run_id: str) -> Run:
    """Find a study run by its id or by the id of a lane run. Raises `TrackingError` if one of them is deleted."""
    run = connection.kept_run(client, run_id)
    parent = run.data.tags.get(Tag.PARENT) if run.data.tags.get(Tag.KIND) == Kind.LANE else None
    return connection.kept_run(client, parent) if parent else run


def _local(artifact_uri: str, name: str) -> bytes | None:
    directory = artifact_stores.local_directory(artifact_uri)
    if directory is None:
        return None
    with suppress(OSError):
        return documents.content(directory / name, artifact_stores.MOST_OF_RUN)
    return None


def _of_json(run: dict[str, Any], names: dict[str, str]) -> ListedRun:
    info = run["info"]
    tags = {tag["key"]: tag.get("value", "") for tag in run["data"].get("tags", ())}
    experiment_id = info["experiment_id"]
    started_ms = int(info.get("start_time", 0))
    return ListedRun(info["run_id"], names[experiment_id], experiment_id, info["artifact_uri"], tags, started_ms)


def _of_client(run: Run, experiment: str) -> ListedRun:
    info = run.info
    tags, started_ms = dict(run.data.tags), info.start_time or 0
    return ListedRun(info.run_id, experiment, info.experiment_id, info.artifact_uri, tags, started_ms)
