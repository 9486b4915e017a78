"""Access to a tracking server: allowed host names, login settings with generated secrets, and https options."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import ssl
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil

from mlflow_ngraph.errors import DependencyError, NGraphError, UsageError

KEY_FILE, PASSWORD_FILE, SETTINGS_FILE, USERS_FILE = "secret-key", "admin-password", "users.ini", "users.db"
"""Names in the server's folder."""
_SECRETS = {"MLFLOW_FLASK_SERVER_SECRET_KEY": KEY_FILE, "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD_FILE}
_SETTINGS = "MLFLOW_AUTH_CONFIG_PATH"
_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Test if a server that listens there can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def hosts(listening: str, names: Iterable[str]) -> str:
    """The names that a server answers to, so that no other web page can speak to it through a browser (DNS rebinding).

    Parameters
    ----------
    listening : str
        Where it listens; everywhere stands for each address of this machine.
    names : Iterable[str]
        Names of the server, besides those of the machine.
    """
    own = dict.fromkeys((*_LOCAL, socket.gethostname(), socket.getfqdn(), *_addresses(listening), *names))
    literal = [f"[{name}]" if ":" in name else name for name in own]
    # Only a name with an asterisk is a pattern, in which a bracket has to be escaped.
    return ",".join((*literal, *(f"{name.replace('[', '[[]')}:*" for name in literal)))


def _addresses(listening: str) -> list[str]:
    try:
        everywhere = ipaddress.ip_address(listening.strip("[]")).is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere:
        return [listening.strip("[]")]
    entries = (entry for each in psutil.net_if_addrs().values() for entry in each)
    # The zone of a link-local address is this machine's name for it.
    return [entry.address.partition("%")[0] for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]


def users(folder: Path) -> Mapping[str, str]:
    """Variables of a server whose visitors have to log in; secrets are made at the first start, and kept.

    Raises
    ------
    DependencyError
        MLflow's part for users is not installed.
    """
    if find_spec("flask_wtf") is None:
        raise DependencyError(
            "users and permissions need more of MLflow: pip install 'mlflow[auth]'; or listen on 127.0.0.1, or let "
            "everybody in who reaches the server with --without-login"
        )
    settings = folder / SETTINGS_FILE
    if not settings.exists():
        _write_secret(
            settings,
            "[mlflow]\n"
            "default_permission = READ\n"
            f"database_uri = sqlite:///{(folder / USERS_FILE).absolute()}\n"
            "admin_username = admin\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
        )
    made = {name: _secret(folder / file) for name, file in _SECRETS.items() if name not in os.environ}
    return {_SETTINGS: os.environ.get(_SETTINGS, str(settings.absolute())), **made}


def certificate(chain: Path | None, key: Path | None) -> list[str]:
    """The options of uvicorn for a server that is spoken to in private; none without a certificate.

    Parameters
    ----------
    chain : Path | None
        File with the certificate and those that vouch for it, as PEM.

    Raises
    ------
    UsageError
        One of them is missing, or they do not belong together.
    """
    if chain is None and key is None:
        return []
    if chain is None or key is None:
        raise UsageError("a certificate and its key are given together: --certificate FILE --key FILE")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"certificate {chain} with key {key}: {error.strerror or error}") from error
    return ["--ssl-certfile", str(chain.absolute()), "--ssl-keyfile", str(key.absolute())]


def _no_password() -> str:
    raise UsageError("the key of the certificate is encrypted: give one that is not, readable by the server alone")


def _secret(path: Path) -> str:
    """The secret in a file of its own, which is made where there is none."""
    if not path.exists():
        _write_secret(path, secrets.token_urlsafe(24) + "\n")
    return path.read_text(encoding="utf-8").strip()


def _write_secret(path: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise NGraphError(f"cannot write {path}: {error.strerror}") from error
