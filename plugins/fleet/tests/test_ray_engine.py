"""Who is let in, and what is said of a job API that is open, shut or away; the lab tests the real one."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from mlflow_ngraph.errors import DependencyError, FleetAwayError, FleetError
from mlflow_ngraph_fleet import description, ray_engine
from mlflow_ngraph_fleet.engine import State
from mlflow_ngraph_fleet.ray_engine import RayEngine
from tests.support.certificates import write_certificate

TOKEN = "open-sesame"


class JobApi(BaseHTTPRequestHandler):
    """As much of a job API as a client asks for first."""

    wants = ""
    broken = False
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.wants and self.headers.get("Authorization") != f"Bearer {self.wants}":
            self._answer(401, "Unauthorized: Invalid or missing authentication token")
        elif self.broken:
            self._answer(503, "not well")
        elif self.path == "/api/version":
            self._answer(
                200, json.dumps({"version": "4", "ray_version": "2.60.0", "ray_commit": "c", "session_name": "s"})
            )
        elif self.path == "/api/jobs/":
            self._answer(200, "[]")
        else:
            self._answer(404, "Job x does not exist")

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[tuple[str, type[JobApi]]]:
    """A job API that is open to all."""
    pytest.importorskip("ray")

    class OneApi(JobApi):
        asked: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), OneApi)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", OneApi
    server.shutdown()
    server.server_close()


def fleet(tmp_path: Path, address: str, token: str = TOKEN, **head: str) -> description.Fleet:
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    content = {
        "token_file": "token",
        "head": {"host": "h", "address": address, **head},
        "devices": {"xeon": {"host": "x"}},
    }
    return description.parse(content, tmp_path / "fleet.yaml")


def test_an_open_job_api_is_refused(tmp_path: Path, api: tuple[str, type[JobApi]]) -> None:
    with pytest.raises(FleetError, match="asks for no token"):
        RayEngine.connect(fleet(tmp_path, api[0]))
    with RayEngine.connect(fleet(tmp_path, api[0]), insecure=True) as engine:
        assert engine.recover() == []


def test_one_that_wants_a_token_gets_it(tmp_path: Path, api: tuple[str, type[JobApi]]) -> None:
    api[1].wants = TOKEN
    with RayEngine.connect(fleet(tmp_path, api[0])) as engine:
        assert engine.status("x").state is State.LOST
        assert engine.logs("x") == ""
    assert not any(TOKEN in path for path in api[1].asked)


def test_a_token_of_another_fleet_is_told(tmp_path: Path, api: tuple[str, type[JobApi]]) -> None:
    api[1].wants = TOKEN
    with pytest.raises(FleetError, match="does not take the token") as raised:
        RayEngine.connect(fleet(tmp_path, api[0], "another"))
    assert "another" not in str(raised.value)


def test_one_that_is_away_is_no_fault_of_the_request(tmp_path: Path, api: tuple[str, type[JobApi]]) -> None:
    with pytest.raises(FleetAwayError, match="does not answer") as raised:
        RayEngine.connect(fleet(tmp_path, "http://127.0.0.1:9"))
    assert raised.value.exit_code == 1
    api[1].wants = TOKEN
    with RayEngine.connect(fleet(tmp_path, api[0])) as engine:
        api[1].broken = True
        with pytest.raises(FleetAwayError, match="not well"):
            engine.status("x")


def test_an_address_with_tls_is_vouched_for(tmp_path: Path, api: tuple[str, type[JobApi]]) -> None:
    chain, key = write_certificate(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    api[1].wants = TOKEN
    server = ThreadingHTTPServer(("127.0.0.1", 0), api[1])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"https://127.0.0.1:{server.server_address[1]}"
    try:
        with RayEngine.connect(fleet(tmp_path, address, ca_file="tls/server.pem")) as engine:
            assert engine.recover() == []
        with pytest.raises(FleetError, match="nobody here vouches for"):
            RayEngine.connect(fleet(tmp_path, address))
        with pytest.raises(FleetError, match="no file"):
            RayEngine.connect(fleet(tmp_path, address, ca_file="none.pem"))
    finally:
        server.shutdown()
        server.server_close()


def test_variables_of_ray_lead_nowhere_else(
    tmp_path: Path, api: tuple[str, type[JobApi]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    api[1].wants = TOKEN
    with RayEngine.connect(fleet(tmp_path, api[0])) as engine:
        assert engine.recover() == []


def test_without_ray_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_engine.client_class.cache_clear()
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(DependencyError, match=r"mlflow-ngraph-fleet\[ray\]"):
        RayEngine.connect(fleet(tmp_path, "http://127.0.0.1:9"))
    ray_engine.client_class.cache_clear()
