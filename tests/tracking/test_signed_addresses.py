"""A server that passes no files on: it signs addresses of the store behind it, for which no login is needed."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.tracking import artifact_stores, plain_http, transfer
from mlflow_ngraph.tracking.transfer import CHUNK, FilePart

NAME = "engine/a model #1?.bin"
CONTENT = os.urandom(2 * CHUNK + 1234)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ONLY_SIGNED = {"error_code": "PERMISSION_DENIED", "message": "not through here", "artifacts_presigned_only": True}


class Lab:
    """A tracking server and the store behind it, in one."""

    def __init__(self) -> None:
        self.address = ""
        self.refusal: object = ONLY_SIGNED
        self.signed: object = None
        """What it says instead of an address."""
        self.cuts: list[int] = []
        """After how many bytes the next answers of the store end."""
        self.asked: list[tuple[str, str | None, str | None]] = []
        """Which part was asked, with which login, for which range."""


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    found = Lab()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            for part, answer in (
                (plain_http.ARTIFACTS, self._pass_on), (plain_http.SIGNED, self._sign), ("store", self._serve),
            ):  # fmt: skip
                if self.path.startswith(f"/{part}/"):
                    found.asked.append((part, self.headers.get("Authorization"), self.headers.get("Range")))
                    answer()

        def _pass_on(self) -> None:
            self._say(403, found.refusal)

        def _sign(self) -> None:
            name = self.path.removeprefix(f"/{plain_http.SIGNED}")
            url = f"{found.address}/store{name}?X-Signature=nobody-may-see"
            self._say(200, found.signed or {"url": url, "headers": {"x-needed": "1"}, "file_size": len(CONTENT)})

        def _serve(self) -> None:
            if self.headers.get("x-needed") != "1" or "X-Signature=nobody-may-see" not in self.path:
                self._say(400, {})
                return
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.end_headers()
            cut = found.cuts.pop(0) if found.cuts else len(CONTENT)
            self.wfile.write(CONTENT[start : start + cut])
            self.close_connection = start + cut < len(CONTENT)

        def _say(self, status: int, said: object) -> None:
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "orin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cret")
    yield found
    server.shutdown()
    server.server_close()


def brought(lab: Lab, folder: Path) -> bytes:
    store = artifact_stores.store_of("mlflow-artifacts:/1/models/m-1/artifacts", lab.address, folder)
    part = FilePart(folder / "part")
    transfer.bring(store, NAME, DIGEST, part, "the model")
    return part.path.read_bytes()


@pytest.mark.parametrize("client", ["plain", "mlflow"])
def test_files_come_from_the_store_and_the_login_stays_with_the_server(
    client: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if client == "mlflow":
        monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")  # what the plain client leaves to MLflow's
    lab.cuts = [CHUNK]
    assert brought(lab, tmp_path) == CONTENT
    server, login = lab.asked[0][0], lab.asked[0][1]
    assert (server, login is not None) == (plain_http.ARTIFACTS, True)
    assert [(part, ranged) for part, _, ranged in lab.asked[1:]] == [
        (plain_http.SIGNED, None), ("store", None), (plain_http.SIGNED, None), ("store", f"bytes={CHUNK}-"),
    ]  # fmt: skip
    assert {who for part, who, _ in lab.asked if part == "store"} == {None}
    assert {who for part, who, _ in lab.asked if part != "store"} == {login}


@pytest.mark.parametrize("refusal", [{"error_code": "PERMISSION_DENIED"}, ["artifacts_presigned_only"], None])
def test_who_may_not_read_is_refused(refusal: object, lab: Lab, tmp_path: Path) -> None:
    lab.refusal = refusal
    with pytest.raises(EngineError, match="cannot download the model: the server answers 403"):
        brought(lab, tmp_path)
    assert len(lab.asked) == 1


@pytest.mark.parametrize("said", [{"url": 1}, {"url": "x", "headers": None}, ["url"], "x"])
def test_a_server_that_signs_nothing_is_refused(said: object, lab: Lab, tmp_path: Path) -> None:
    lab.signed = said
    with pytest.raises(EngineError, match="cannot download the model: the server does not say where it lies"):
        brought(lab, tmp_path)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/f?X-Signature=nobody-may-see", "file:///etc/passwd?X-Signature=nobody"]
)
def test_a_signed_address_is_in_no_message(
    address: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    lab.signed = {"url": address, "headers": {}}
    with pytest.raises(EngineError, match="cannot download the model: the store of the server") as caught:
        brought(lab, tmp_path)
    assert "nobody" not in str(caught.value)
