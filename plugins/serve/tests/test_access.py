"""Who may speak to a server, and what is refused before one is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_ngraph.errors import DependencyError, UsageError
from mlflow_ngraph_serve.hosting import access, database
from mlflow_ngraph_serve.hosting.server import ServerOptions, run
from tests.support.certificates import write_certificate


def refused(options: ServerOptions) -> str:
    with pytest.raises(UsageError) as raised:
        run(options, lambda database: pytest.fail("it has started"))
    return str(raised.value)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("127.0.0.1", "127.0.1.9", "localhost", "::1", "[::1]")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.1.4", "lab")),
    ],
)
def test_who_is_asked_to_log_in(host: str, here: bool) -> None:
    assert access.is_loopback(host) is here
    assert ServerOptions(Path("x"), host).has_users is not here
    assert not ServerOptions(Path("x"), host, login=False).has_users


def test_names_are_those_of_the_machine_and_those_that_are_given() -> None:
    names = access.hosts(["bench.lab.example"]).split(",")
    assert {"localhost", "bench.lab.example", "bench.lab.example:*", socket.gethostname(), "10.*"} <= set(names)
    assert "*" not in names
    assert "172.32.*" not in names


def test_secrets_are_made_once_and_are_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_FLASK_SERVER_SECRET_KEY", "MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_AUTH_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    first = access.users(tmp_path)
    assert access.users(tmp_path) == first
    assert len(set(first.values())) == 3
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "chosen by somebody")
    assert "MLFLOW_AUTH_ADMIN_PASSWORD" not in access.users(tmp_path)


def test_users_need_a_part_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install 'mlflow\[auth\]'"):
        access.users(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    assert refused(ServerOptions(tmp_path / "new", port=taken)) == (
        f"cannot listen on 127.0.0.1, port {taken}: Address already in use; choose others with --host, --port"
    )
    assert not list((tmp_path / "new").iterdir())


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused(ServerOptions(tmp_path / "file" / "new")).startswith(f"folder {tmp_path}/file/new: Not a directory")


@pytest.mark.parametrize("address", ["postgresql://lab:s3cret@host/mlflow", "postgresql://lab:s3c@ret@host:x/mlflow"])
def test_a_password_does_not_belong_on_the_command_line(tmp_path: Path, address: str) -> None:
    with (
        pytest.raises(UsageError, match="put the address into MLFLOW_BACKEND_STORE_URI") as raised,
        database.running(tmp_path, address),
    ):
        pytest.fail("it was taken")
    assert "s3c" not in str(raised.value)


def test_certificates_and_keys_belong_together(tmp_path: Path) -> None:
    chain, key = write_certificate(tmp_path / "one")
    _, other = write_certificate(tmp_path / "two")
    assert access.certificate(None, None) == []
    assert access.certificate(chain, key) == ["--ssl-certfile", str(chain), "--ssl-keyfile", str(key)]
    for wrong, message in (
        ((chain, None), "are given together"),
        ((chain, tmp_path / "no"), "No such file"),
        ((chain, other), r"KEY_VALUES_MISMATCH|key values mismatch"),
    ):
        with pytest.raises(UsageError, match=message):
            access.certificate(*wrong)
