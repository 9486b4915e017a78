"""Whoever looks at the page, and what MLflow lets them see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from flask import current_app, request
from werkzeug.test import Client

from mlflow_ngraph.errors import TrackingError
from mlflow_ngraph.tracking.schema import Kind, Tag

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_OF_THIS_REQUEST = (
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "if-none-match",
    "origin",
)
"""Headers that say nothing about who asks."""
_DENIED = (401, 403, 404)


class Visitor:
    """Asks MLflow's own interface in the name of whoever asks us.

    Questions go to the application that this very request came to, with the same headers. So they pass through the
    authentication, the permissions and the workspaces that MLflow or a plugin has put before it, and nobody sees here
    what MLflow would not show. Safe to use from several threads.

    Parameters
    ----------
    app : WSGIApplication
        MLflow's application.
    prefix : str
        What stands before all paths (``--static-prefix``).
    host : str
        The address under which the server was asked.
    headers : Mapping[str, str]
        Those of the request.
    """

    def __init__(self, app: WSGIApplication, prefix: str, host: str, headers: Mapping[str, str]) -> None:
        self._app = app
        self._prefix = prefix
        self._host = host
        self._headers = {name: value for name, value in headers.items() if name.lower() not in _OF_THIS_REQUEST}

    @classmethod
    def asking(cls, prefix: str) -> Visitor:
        """Whoever made the current request."""
        return cls(current_app.wsgi_app, prefix, request.host_url, dict(request.headers))

    def sees_studies_of(self, experiment_id: str) -> bool:
        """Whether MLflow shows the visitor runs of studies in an experiment that has some.

        Raises
        ------
        TrackingError
            MLflow does not answer as it should.
        """
        asked = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{Tag.KIND}` = '{Kind.STUDY}'",
            "max_results": 1,
        }
        path = f"{self._prefix}/ajax-api/2.0/mlflow/runs/search"
        answer = self._client().post(path, json=asked, headers=self._headers, base_url=self._host)
        if answer.status_code in _DENIED:
            return False
        if answer.status_code != 200:
            raise TrackingError(f"MLflow cannot list runs (status {answer.status_code}): see the log of the server")
        return bool((answer.json or {}).get("runs"))

    def artifact(self, run_id: str, path: str) -> bytes | None:
        """A file of a run; None if there is none, or it may not be seen.

        Raises
        ------
        TrackingError
            MLflow does not answer as it should.
        """
        query = urlencode({"run_id": run_id, "path": path})
        answer = self._client().get(f"{self._prefix}/get-artifact?{query}", headers=self._headers, base_url=self._host)
        if answer.status_code == 200:
            content: bytes = answer.data
            return content
        if 400 <= answer.status_code < 500:
            return None
        raise TrackingError(f"run {run_id}: MLflow cannot read {path} (status {answer.status_code})")

    def _client(self) -> Client:
        return Client(self._app, use_cookies=False)
