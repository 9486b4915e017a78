"""Who may speak to a server, and what is refused before one is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from mlflow.server.security_utils import is_allowed_host_header

from mlflow_ngraph.errors import DependencyError, UsageError
from mlflow_ngraph.processes.warden import Warden
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


def answered(listening: str, *names: str) -> Callable[[str], bool]:
    allowed = access.hosts(listening, names).split(",")
    return lambda host: bool(is_allowed_host_header(allowed, host))


def test_names_are_those_of_the_machine_and_those_that_are_given() -> None:
    ours = answered("127.0.0.1", "bench.lab.example")
    for name in ("localhost", "127.0.0.1", "[::1]", socket.gethostname(), "bench.lab.example"):
        assert ours(name)
        assert ours(f"{name}:5000")
    for name in (
        "10.evil.example",
        "192.168.evil.example",
        "172.16.evil.example",
        "10.0.0.1.evil.example",
        "127.0.0.1.evil",
    ):
        assert not ours(name)
        assert not ours(f"{name}:5000")


def test_addresses_are_those_that_it_listens_at(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET, "10.1.2.3"), (socket.AF_INET6, "fe80::1%eth0"), (socket.AF_PACKET, "02:42:ac:11")]
    entries = [SimpleNamespace(family=family, address=address) for family, address in addresses]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": entries})
    for everywhere in ("0.0.0.0", "::"):
        assert answered(everywhere)("10.1.2.3:5000")
        assert answered(everywhere)("[fe80::1]:5000")
        assert not answered(everywhere)("10.1.2.4:5000")
    assert answered("10.1.2.4")("10.1.2.4:5000")
    for host in ("10.1.2.4", "127.0.0.1", "localhost", "::1"):
        assert not answered(host)("10.1.2.3:5000")


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


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "address",
    [
        "postgresql://lab:s3cret@host/mlflow",
        "postgresql://lab:s3c@ret@host:x/mlflow",
        "postgresql://host/mlflow?user=lab&password=s3cret",
    ],
)
def test_a_password_does_not_belong_on_the_command_line(tmp_path: Path, address: str) -> None:
    with (
        pytest.raises(UsageError, match="put the address into MLFLOW_BACKEND_STORE_URI") as raised,
        closing(Warden()) as warden,
        database.running(tmp_path, address, warden),
    ):
        pytest.fail("it was taken")
    assert "s3c" not in str(raised.value)


def test_a_login_of_the_store_of_files_does_not_belong_there_either(tmp_path: Path) -> None:
    said = refused(ServerOptions(tmp_path / "new", artifacts="s3://AKIA:s3cret@bucket/path"))
    assert said.startswith("artifacts s3://bucket/path: a login on the command line can be read by every user")


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path, taken: int) -> None:
    refused(ServerOptions(tmp_path / "new", port=taken))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


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
