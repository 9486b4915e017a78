"""Applications for ``mlflow server --app-name``: MLflow's own with the page at ``/ngraph``.

The page is part of MLflow's Flask application, so it works with every server and behind MLflow's authentication.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flask import Flask


def create_app() -> Any:
    """Create the application ``--app-name ngraph``."""
    from mlflow.server import app

    _add_page(app)
    if os.environ.get("_MLFLOW_SGI_NAME") != "uvicorn":
        return app
    from mlflow.server.fastapi_app import app as served

    return served


def create_auth_app() -> Any:
    """Create the application ``--app-name ngraph-auth``, with MLflow's ``basic-auth``.

    A visitor logs in, and sees the experiments that he may read.
    """
    from mlflow.server import app, auth

    from mlflow_ngraph.ui import pages

    _add_page(app)
    # MLflow may deny paths without a rule. Those of the page are open to all users who are logged in, because their
    # content depends on the visitor's permissions.
    auth.BEFORE_REQUEST_VALIDATORS.update({(path, "GET"): _anybody for path in pages.paths()})
    return auth.create_app(app)


def _add_page(app: Flask) -> None:
    from mlflow_ngraph.ui import pages

    if pages.NAME not in app.blueprints:
        app.register_blueprint(pages.blueprint())


def _anybody() -> bool:
    return True
