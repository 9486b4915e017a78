"""Sessions and artifact addresses for plain HTTP to a tracking server, where MLflow's slow client is not needed."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from mlflow_ngraph.tracking import connection

if TYPE_CHECKING:
    import requests

ARTIFACTS = "api/2.0/mlflow-artifacts/artifacts"
"""Path under which a server passes artifacts on."""
SIGNED = "api/2.0/mlflow-artifacts/presigned"
"""Path under which it signs addresses of the store, which let anybody read who has them."""
_NEEDS_CLIENT = (
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_WORKSPACE",
)
"""Settings of a connection that are left to MLflow's client."""
_HEADER_PLUGINS = ("mlflow.request_header_provider", "mlflow.request_auth_provider")


def speaks(uri: str) -> bool:
    """True if talking to a server takes no more than its address and perhaps a password or a token."""
    if not connection.is_server(uri) or any(os.environ.get(name) for name in _NEEDS_CLIENT):
        return False
    named = os.environ.get("MLFLOW_TRACKING_USERNAME") or os.environ.get("MLFLOW_TRACKING_TOKEN")
    if not named and (Path.home() / ".mlflow" / "credentials").exists():
        return False
    return not any(metadata.entry_points(group=group) for group in _HEADER_PLUGINS)


def session(at_once: int) -> requests.Session:
    """A client with the user's password or token, for as many threads as use it concurrently."""
    import requests

    from mlflow_ngraph.tracking.answer_limits import LimitedAdapter

    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, LimitedAdapter(pool_maxsize=at_once))
    user, token = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN")
    if user:
        made.auth = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    elif token:
        made.headers["Authorization"] = f"Bearer {token}"
    return made


def excused() -> suppress:
    """Leave an answer that is missing or cannot be read to MLflow's client, which reports it."""
    from requests import RequestException

    return suppress(RequestException, ValueError, LookupError, TypeError, AttributeError)


def artifact_address(tracking_uri: str, artifact_uri: str) -> str | None:
    """The address of an artifact that the server itself passes on; None where MLflow's client has to fetch it."""
    parts = urlsplit(artifact_uri)
    if parts.scheme != "mlflow-artifacts" or parts.netloc or not speaks(tracking_uri):
        return None
    return f"{tracking_uri.rstrip('/')}/{ARTIFACTS}/{quote(parts.path.strip('/'))}"


def signing_address(address: str) -> str:
    """Address that signs the artifact at ``address``."""
    return address.replace(f"/{ARTIFACTS}", f"/{SIGNED}", 1)
