"""Visitor: asks MLflow for study runs and artifacts in the name of the page's visitor, so its permissions hold."""

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
"""Headers that do not identify the visitor."""
_DENIED = (401, 403, 404)


class Visitor:
    """Client of MLflow's own API with the visitor's identity.

    Requests go to the application that served the current request, with its headers. They pass the authentication,
    permissions and workspaces set up there, so the page shows nothing that MLflow would not. Safe to use from several
    threads.
    """

    def __init__(self, app: WSGIApplication, prefix: str, host: str, headers: Mapping[str, str]) -> None:
        self._app = app
        self._prefix = prefix
        self._host = host
        self._headers = {name: value for name, value in headers.items() if name.lower() not in _OF_THIS_REQUEST}

    @classmethod
    def asking(cls, prefix: str) -> Visitor:
        """Visitor of the current request."""
        return cls(current_app.wsgi_app, prefix, request.host_url, dict(request.headers))

    def sees_studies_of(self, experiment_id: str) -> bool:
        """Tell if MLflow shows the visitor study runs of an experiment."""
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
        """File of a run; None if it is missing or not permitted."""
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
