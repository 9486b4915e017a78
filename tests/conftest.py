"""Fixtures that tests of several parts share."""

from tests.support.fake import fake_compiler
from tests.support.lock import lock_folder
from tests.support.logged import logged
from tests.support.servers import (
    clean_environment,
    mlflow_server,
    postgres_uri,
    server_uri,
    sqlite_template,
    sqlite_uri,
)

__all__ = [
    "clean_environment",
    "fake_compiler",
    "lock_folder",
    "logged",
    "mlflow_server",
    "postgres_uri",
    "server_uri",
    "sqlite_template",
    "sqlite_uri",
]
