"""Flask blueprint of the page, its files and its JSON endpoints."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Callable, Collection
from functools import lru_cache, wraps
from importlib import metadata, resources
from typing import Any

from flask import Blueprint, Response, redirect, request

from mlflow_ngraph.errors import NGraphError, TrackingError
from mlflow_ngraph.tracking import views
from mlflow_ngraph.ui import answers
from mlflow_ngraph.ui.query import Query
from mlflow_ngraph.ui.store import Newest, ResultStore
from mlflow_ngraph.ui.visitor import Visitor

NAME = "ngraph"
PLOTLY = "plotly.min.js"
_FILES = {
    "app.css": "text/css",
    **dict.fromkeys(
        ("app.js", "controls.js", "curves.js", "dom.js", "findings.js", "map.js", "server.js", "state.js", "table.js"),
        "text/javascript",
    ),
    PLOTLY: "text/javascript",
}
_QUESTIONS = ("options", "comparison", "findings")
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    # Plotly adds style elements. They can load nothing, because the rules for images and fonts apply to them.
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'self'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_REMEMBERED = 100
"""Number of findings in the cache."""
_SMALL = 1000
"""Responses below this many bytes are not compressed."""
_logger = logging.getLogger(__name__)


def paths() -> list[str]:
    """Routes of the page with the server's prefix."""
    root = f"{_prefix()}/{NAME}"
    return [
        root,
        f"{root}/",
        *(f"{root}/static/{name}" for name in _FILES),
        *(f"{root}/api/{name}" for name in _QUESTIONS),
    ]


def blueprint() -> Blueprint:
    """Create the blueprint. Links within the page are relative, so it works behind any prefix."""
    page = Blueprint(NAME, __name__, url_prefix=f"{_prefix()}/{NAME}")
    _add_files(page)
    _add_questions(page, ResultStore(_store_uri()))

    @page.after_request
    def secured(answer: Response) -> Response:
        answer.headers.update(_HEADERS)
        return answer

    return page


def _add_files(page: Blueprint) -> None:
    @page.get("")
    def without_slash() -> Any:
        query = request.query_string.decode()
        return redirect(f"{NAME}/" + (f"?{query}" if query else ""))

    @page.get("/")
    def index() -> Response:
        return _sent(_page(), "text/html")

    @page.get("/static/<name>")
    def static_file(name: str) -> Response:
        if name not in _FILES:
            return _told({"error": f"there is no file {name}"}, 404)
        answer = _sent(_plotly() if name == PLOTLY else _own(name), _FILES[name])
        # The address of Plotly's file contains its version; ours may change with the package.
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable" if name == PLOTLY else "no-cache"
        return answer


def _add_questions(page: Blueprint, store: ResultStore) -> None:
    # Findings take long with many results, and most visitors ask for the same.
    remembered: dict[Any, dict[str, Any]] = {}

    def visible(experiments: Collection[str] = ()) -> Newest:
        """Newest results of the studies that the visitor may see, in these experiments or in all."""
        visitor = Visitor.asking(_prefix())
        runs = [run for run in store.studies() if not experiments or run.experiment_id in experiments]
        seen = {experiment for experiment in {run.experiment_id for run in runs} if visitor.sees_studies_of(experiment)}
        return store.newest([run for run in runs if run.experiment_id in seen], visitor.artifact)

    @page.get("/api/options")
    @_answering
    def options() -> dict[str, Any]:
        found = visible()
        answer = {**answers.options(found.cells), "notes": found.notes}
        for experiment in answer["experiments"]:
            experiment["view"] = views.link("..", experiment["id"])
        return answer

    @page.get("/api/comparison")
    @_answering
    def comparison() -> dict[str, Any]:
        question = Query.of(request.args)
        return answers.comparison(visible(question.chosen["experiment"]).cells, question)

    @page.get("/api/findings")
    @_answering
    def findings() -> dict[str, Any]:
        question = Query.of(request.args)
        found = visible(question.chosen["experiment"])
        key = (found.studies, tuple(sorted(question.chosen.items())))
        if key not in remembered:
            if len(remembered) >= _REMEMBERED:
                remembered.clear()
            remembered[key] = answers.findings(found.cells, question)
        return remembered[key]


def _answering(ask: Callable[[], dict[str, Any]]) -> Callable[[], Response]:
    """Wrap an endpoint, so that errors become one line for the visitor."""

    @wraps(ask)
    def answered() -> Response:
        try:
            return _told(ask())
        except TrackingError as error:
            return _told({"error": str(error)}, 502)
        except NGraphError as error:
            return _told({"error": str(error)}, 400)
        except Exception as error:
            _logger.exception("%s failed", request.path)
            return _told({"error": f"unexpected {type(error).__name__}: see the log of the server"}, 500)

    return answered


def _told(content: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    answer = _sent(text.encode(), "application/json", status)
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _sent(content: bytes, kind: str, status: int = 200) -> Response:
    packed = len(content) > _SMALL and "gzip" in request.accept_encodings.values()
    answer = Response(_packed(content) if packed else content, status, content_type=f"{kind}; charset=utf-8")
    answer.headers["Vary"] = "Accept-Encoding"
    if packed:
        answer.headers["Content-Encoding"] = "gzip"
    return answer


@lru_cache(maxsize=32)
def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 6)


@lru_cache(maxsize=1)
def _page() -> bytes:
    text = _own("index.html").decode()
    return text.replace("{{plotly}}", metadata.version("plotly")).encode()


def _own(name: str) -> bytes:
    return resources.files("mlflow_ngraph.ui").joinpath("static").joinpath(name).read_bytes()


@lru_cache(maxsize=1)
def _plotly() -> bytes:
    return resources.files("plotly").joinpath("package_data").joinpath(PLOTLY).read_bytes()


def _prefix() -> str:
    """Path prefix of the server (``--static-prefix``)."""
    return os.environ.get("_MLFLOW_STATIC_PREFIX", "").rstrip("/")


def _store_uri() -> str:
    """Tracking store of the server, as ``mlflow server`` passes it to its processes."""
    uri = os.environ.get("_MLFLOW_SERVER_FILE_STORE")
    if not uri:
        raise TrackingError("the page is a part of 'mlflow server': start that with --app-name ngraph")
    return uri
