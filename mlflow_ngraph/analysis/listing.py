"""The study runs of a tracking server: which there are, what they are tagged with, and how to read one file of theirs.

This is what a person waits for who compares results that this machine has read before. Hence a plain server is asked
directly, without importing MLflow, which takes longer than the answer. Everything else is asked for with MLflow's own
client: it knows whose runs somebody sees, such as those of a workspace.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mlflow_ngraph import addresses
from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.tracking import connection, plain
from mlflow_ngraph.tracking.schema import Artifact, Kind, Tag

if TYPE_CHECKING:
    import requests
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

GIT_COMMIT = "mlflow.source.git.commit"
PARALLEL = 8
"""Files that are read at once."""
_TIMEOUT = 30.0
_PAGE = 1000
_RUNS_AT_ONCE = 10_000
"""MLflow looks at a database anew for every page."""


@dataclass(frozen=True)
class Listed:
    """A study run that is not deleted and that no other run took over."""

    run_id: str
    experiment: str
    experiment_id: str
    artifact_uri: str
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of its results table; empty where the run does not say."""
        return self.tags.get(Tag.RESULTS_SHA256, "")


class Server:
    """One tracking server as a source of study runs.

    Parameters
    ----------
    tracking_uri : str | None
        Where to read; MLflow's own default when left out.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = _resolved(tracking_uri)
        self._client: MlflowClient | None = None
        self._session: requests.Session | None = None

    @property
    def name(self) -> str:
        """The address without passwords."""
        return addresses.shown(self.uri)

    @property
    def client(self) -> MlflowClient:
        """MlflowClient of a server that answered.

        Raises
        ------
        TrackingError
            Nothing answers.
        """
        if self._client is None:
            self._client = connection.reach(self.uri)
        return self._client

    def study_runs(self) -> list[Listed]:
        """All study runs of all experiments, in no order.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        runs = self._from_rest()
        if runs is None:
            runs = self._from_client()
        return [run for run in runs if Tag.RESUMED_BY not in run.tags]

    def experiments(self) -> list[str]:
        """The names of all experiments that are not deleted."""
        with self.talking():
            experiments: list[Experiment] = connection.every(
                lambda token: self.client.search_experiments(page_token=token)
            )
        return [experiment.name for experiment in experiments]

    def study_run(self, run_id: str) -> Listed:
        """The study run of this id, or the one that this run is a lane of.

        Raises
        ------
        TrackingError
            There is no such run.
        """
        with self.talking():
            run = study_run(self.client, run_id)
            return _of_client(run, self.client.get_experiment(run.info.experiment_id).name)

    def quick_results(self, run: Listed) -> bytes | None:
        """The content of the results table of a run, or None if it is not to be had without MLflow's client."""
        if run.digest:
            for read in (_local, self._proxied):
                content = read(run.artifact_uri)
                if content is not None:
                    return content
        return None

    def results(self, run: Listed) -> bytes | None:
        """The content of the results table of a run; None when the study has not got as far as writing one.

        To be called within `talking`, as is `again`.
        """
        with tempfile.TemporaryDirectory() as directory:
            if Artifact.RESULTS not in {file.path for file in self.client.list_artifacts(run.run_id)}:
                return None
            return Path(self.client.download_artifacts(run.run_id, Artifact.RESULTS, directory)).read_bytes()

    def again(self, run: Listed) -> Listed:
        """The run as it is now."""
        return _of_client(self.client.get_run(run.run_id), run.experiment)

    def _from_rest(self) -> list[Listed] | None:
        if not plain.speaks(self.uri):
            return None
        from requests import RequestException

        with suppress(RequestException, ValueError, KeyError):
            names = {experiment["experiment_id"]: experiment["name"] for experiment in self._search("experiments", {})}
            asked = {"experiment_ids": list(names), "filter": f"tags.`{Tag.KIND}` = '{Kind.STUDY}'"}
            return [_of_json(run, names) for run in (self._search("runs", asked) if names else ())]
        return None

    def _search(self, what: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """All pages of a search."""
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

    def _proxied(self, artifact_uri: str) -> bytes | None:
        """The table through the server's own artifact service."""
        address = plain.artifact_address(self.uri, f"{artifact_uri}/{Artifact.RESULTS}")
        if address is None:
            return None
        from requests import RequestException

        with suppress(RequestException):
            answer = self._http().get(address, timeout=_TIMEOUT)
            if answer.ok:
                return answer.content
        return None

    @property
    def _base(self) -> str:
        return self.uri.rstrip("/")

    def _http(self) -> requests.Session:
        if self._session is None:
            self._session = plain.session(PARALLEL)
        return self._session

    def _from_client(self) -> list[Listed]:
        with self.talking():
            experiments: list[Experiment] = connection.every(
                lambda token: self.client.search_experiments(page_token=token)
            )
            names = {experiment.experiment_id: experiment.name for experiment in experiments}
            query = f"tags.`{Tag.KIND}` = '{Kind.STUDY}'"
            runs: list[Run] = connection.every(
                lambda token: self.client.search_runs(list(names), query, max_results=_RUNS_AT_ONCE, page_token=token)
            )
        return [_of_client(run, names[run.info.experiment_id]) for run in runs]

    def talking(self) -> AbstractContextManager[None]:
        """What requests by way of MLflow's client stand in: their failures are one line.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        self._client = self._client or connection.reach(self.uri)
        return connection.talking(self.uri, "read results", connection.RECORDING)


@dataclass(frozen=True)
class Found:
    """The study runs of one or several tracking servers."""

    servers: tuple[Server, ...]
    runs: dict[str, list[Listed]]
    """By the address of the server."""
    complete: bool
    """Whether these are all that there are."""
    notes: list[str] = field(default_factory=list)
    """What a reader of results should know, such as runs that were left out; grows while results are read."""


def find(
    tracking_uri: str | Sequence[str] | None = None, experiments: Sequence[str] | None = None, run: str | None = None
) -> Found:
    """The study runs that are meant.

    Parameters
    ----------
    tracking_uri : str | Sequence[str] | None
        One server or several; MLflow's own default when left out.
    experiments : Sequence[str] | None
        Names; all of them when left out.
    run : str | None
        The id of a study run, or of one of its lane runs, that is meant alone.

    Raises
    ------
    UnknownNameError
        An experiment does not exist.
    TrackingError
        A server cannot be reached.
    """
    uris = [tracking_uri] if tracking_uri is None or isinstance(tracking_uri, str) else list(tracking_uri)
    servers = tuple(Server(uri) for uri in uris)
    if run is not None:
        return Found(servers, {server.uri: [server.study_run(run)] for server in servers}, complete=False)
    by_server = {server.uri: server.study_runs() for server in servers}
    if experiments is None:
        return Found(servers, by_server, complete=True)
    missing = set(experiments) - {listed.experiment for runs in by_server.values() for listed in runs}
    if missing:
        known = {name for server in servers for name in server.experiments()}
        for name in sorted(missing - known):
            raise UnknownNameError("experiment", name, known)
    kept = {uri: [listed for listed in runs if listed.experiment in experiments] for uri, runs in by_server.items()}
    return Found(servers, kept, complete=False)


def study_run(client: MlflowClient, run_id: str) -> Run:
    """The study run of this id, or the one that this run is a lane of."""
    run = client.get_run(run_id)
    parent = run.data.tags.get(Tag.PARENT) if run.data.tags.get(Tag.KIND) == Kind.LANE else None
    return client.get_run(parent) if parent else run


def _resolved(tracking_uri: str | None) -> str:
    """As `connection.resolve_uri`, without importing MLflow where nobody can have told it something else."""
    configured = os.environ.get("MLFLOW_TRACKING_URI")
    if not tracking_uri and configured and "mlflow" not in sys.modules:
        return configured
    return connection.resolve_uri(tracking_uri)


def _local(artifact_uri: str) -> bytes | None:
    """The table of a run whose artifacts lie on this machine."""
    parts = urlsplit(artifact_uri)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    with suppress(OSError):
        return Path(unquote(parts.path), Artifact.RESULTS).read_bytes()
    return None


def _of_json(run: dict[str, Any], names: dict[str, str]) -> Listed:
    info = run["info"]
    tags = {tag["key"]: tag.get("value", "") for tag in run["data"].get("tags", ())}
    experiment_id = info["experiment_id"]
    return Listed(info["run_id"], names[experiment_id], experiment_id, info["artifact_uri"], tags)


def _of_client(run: Run, experiment: str) -> Listed:
    info = run.info
    return Listed(info.run_id, experiment, info.experiment_id, info.artifact_uri, dict(run.data.tags))
