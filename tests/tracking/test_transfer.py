"""A file arrives whole or not at all, whatever the connection does, and is not fetched twice where that can be helped."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.tracking import artifact_stores, download, plain_http, transfer
from mlflow_ngraph.tracking.artifact_stores import HttpStore, LocalStore
from mlflow_ngraph.tracking.download import Remote
from mlflow_ngraph.tracking.transfer import CHUNK, ArtifactStore, FilePart
from tests.support.specs import stored_engine

SIZE = 6 * CHUNK + 1234
NAME = "engine/a model #1?.bin"
CONTENT = os.urandom(SIZE)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Files:
    """A server of files from memory that does what servers do at their worst."""

    def __init__(self) -> None:
        self.content = {f"/{NAME}": CONTENT, "/empty": b""}
        self.ranges = True
        self.says_size = True
        self.answers: list[int] = []
        """Statuses of the next answers, before it serves."""
        self.cuts: list[int] = []
        """After how many bytes the next answers end."""
        self.asked: list[str | None] = []
        """Ranges that were asked for, by request."""
        self.logins: list[str | None] = []


@pytest.fixture
def files() -> Iterator[Files]:
    served = Files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append(self.headers.get("Range"))
            served.logins.append(self.headers.get("Authorization"))
            content = served.content.get(unquote(self.path))
            status = served.answers.pop(0) if served.answers else 200 if content is not None else 404
            if status != 200 or content is None:
                self._head(status, b"no")
                return
            start = 0
            if served.ranges and self.headers.get("Range"):
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self._head(416, b"")
                    return
            self.send_response(206 if start else 200)
            if served.says_size:
                self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            cut = served.cuts.pop(0) if served.cuts else len(content)
            self.wfile.write(content[start : start + cut])
            self.close_connection = start + cut < len(content) or not served.says_size

        def _head(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.address = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield served
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArtifactStore]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with plain_http.session(1) as http:
        yield HttpStore(
            lambda path, headers: http.get(files.address + path, headers=headers, stream=True, timeout=10)  # type: ignore[attr-defined]
        )


@pytest.fixture
def part(tmp_path: Path) -> FilePart:
    return FilePart(tmp_path / "part")


def brought(store: ArtifactStore, part: FilePart) -> bytes:
    transfer.bring(store, NAME, DIGEST, part, "the model")
    return part.path.read_bytes()


def test_a_file_arrives_and_its_size_is_known_before(store: ArtifactStore, tmp_path: Path, files: Files) -> None:
    came: list[int] = []
    sizes: list[int] = []
    part = FilePart(tmp_path / "part", came.append)
    transfer.bring(store, NAME, DIGEST, part, "the model", sizes.append)
    assert part.path.read_bytes() == CONTENT
    assert (sum(came), sizes, files.asked) == (SIZE, [SIZE], [None])


def test_a_cut_connection_is_taken_up_where_it_stopped(store: ArtifactStore, part: FilePart, files: Files) -> None:
    files.cuts = [2 * CHUNK, 3 * CHUNK]
    assert brought(store, part) == CONTENT
    assert files.asked == [None, f"bytes={2 * CHUNK}-", f"bytes={5 * CHUNK}-"]


def test_a_server_that_cannot_serve_parts_is_asked_again_for_all(
    store: ArtifactStore, part: FilePart, files: Files
) -> None:
    files.ranges, files.cuts = False, [2 * CHUNK]
    assert brought(store, part) == CONTENT
    assert files.asked == [None, f"bytes={2 * CHUNK}-"]


def test_a_connection_that_brings_something_is_worth_another_try(
    store: ArtifactStore, part: FilePart, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    files.cuts = [CHUNK] * 6
    assert brought(store, part) == CONTENT
    assert len(files.asked) == 7


def test_a_connection_that_brings_nothing_is_not(
    store: ArtifactStore, part: FilePart, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    files.cuts = [2 * CHUNK] + [10] * 20
    with pytest.raises(EngineError, match=r"^cannot download the model: the connection was cut; trying again goes on"):
        brought(store, part)
    assert len(files.asked) == 3
    assert part.path.stat().st_size == 2 * CHUNK


def test_the_next_call_goes_on(store: ArtifactStore, part: FilePart, files: Files) -> None:
    part.path.write_bytes(CONTENT[: 3 * CHUNK])
    again = FilePart(part.path)
    assert again.resumed
    assert brought(store, again) == CONTENT
    assert files.asked == [f"bytes={3 * CHUNK}-"]


def test_what_is_whole_is_not_asked_for(store: ArtifactStore, part: FilePart, files: Files) -> None:
    part.path.write_bytes(CONTENT)
    assert brought(store, FilePart(part.path)) == CONTENT
    assert files.asked == []


@pytest.mark.parametrize("left", [b"\0" * CHUNK, CONTENT + b"more"])
def test_what_an_earlier_call_left_is_believed_no_further_than_its_digest(
    store: ArtifactStore, part: FilePart, files: Files, left: bytes
) -> None:
    part.path.write_bytes(left)
    assert brought(store, FilePart(part.path)) == CONTENT
    assert files.asked == [f"bytes={len(left)}-", None]


def test_what_is_not_the_file_is_refused(store: ArtifactStore, part: FilePart, files: Files) -> None:
    files.content[f"/{NAME}"] = CONTENT[:-1] + b"?"
    with pytest.raises(EngineError, match="the model is not what was logged"):
        brought(store, part)
    assert len(files.asked) == 1


def test_a_busy_server_is_asked_again_and_one_that_refuses_is_not(
    store: ArtifactStore, part: FilePart, files: Files
) -> None:
    files.answers = [503, 500, 429]
    assert brought(store, part) == CONTENT
    part.restart()
    files.answers, files.asked = [503] * 9, []
    with pytest.raises(EngineError, match="the server answers 503"):
        brought(store, part)
    assert len(files.asked) == 4
    files.answers, files.asked = [403], []
    with pytest.raises(EngineError, match="the server answers 403"):
        brought(store, part)
    assert len(files.asked) == 1


def test_nobody_there_is_one_line(part: FilePart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with plain_http.session(1) as http:
        store = HttpStore(lambda path, headers: http.get("http://127.0.0.1:9" + path, headers=headers, timeout=2))
        with pytest.raises(EngineError, match="cannot download the model: nothing answers there") as error:
            brought(store, part)
    assert len(str(error.value)) < 300


def test_small_files_have_a_limit(store: ArtifactStore, files: Files, tmp_path: Path) -> None:
    assert transfer.content(store, "empty", tmp_path / "none", "it", 10) == b""
    with pytest.raises(EngineError, match="the manifest is not what was logged: it has more than 10 bytes"):
        transfer.content(store, NAME, tmp_path / "large", "the manifest", 10)


@pytest.mark.parametrize("says_size", [True, False])
def test_what_is_larger_than_allowed_is_not_downloaded_to_its_end(
    store: ArtifactStore, files: Files, tmp_path: Path, says_size: bool
) -> None:
    files.says_size = says_size
    with pytest.raises(EngineError, match="more than"):
        transfer.content(store, NAME, tmp_path / "large", "the manifest", 2 * CHUNK)
    came = (tmp_path / "large").stat().st_size if (tmp_path / "large").exists() else 0
    assert came == (0 if says_size else 2 * CHUNK)


def test_engine_files_larger_than_their_manifest_says_are_not_downloaded_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "model.bin").write_bytes(b"code")
    manifest = stored_engine(tmp_path / "compiled")
    (tmp_path / "store" / "engine").mkdir(parents=True)
    os.truncate(os.open(tmp_path / "store" / "engine" / "model.bin", os.O_CREAT | os.O_WRONLY), 3 << 30)
    remote = Remote("sqlite:///x", (tmp_path / "store").as_uri(), "m-1", None, None)
    with pytest.raises(EngineError, match="more bytes than its manifest says"):
        download.files(remote, manifest, list(manifest.files), tmp_path / "here")
    assert sum(path.stat().st_size for path in (tmp_path / "here").rglob("*") if path.is_file()) == 0


def test_a_file_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(EngineError, match="cannot download the manifest: it is no plain file"):
        transfer.content(LocalStore(tmp_path), "manifest.json", tmp_path / "part", "the manifest", 10)


@pytest.mark.parametrize(
    ("location", "tracking_uri", "same"),
    [
        ("mlflow-artifacts:/1/models/m-1", "https://lab", True),
        ("mlflow-artifacts://lab/1", "https://LAB:443", True),
        ("https://user:password@lab/1", "https://lab", True),
        ("mlflow-artifacts://evil:5822/1", "https://lab", False),
        ("http://lab/1", "https://lab", False),
        ("https://lab@evil/1", "https://lab", False),
        ("https://lab.evil/1", "https://lab", False),
        ("https://lab:99999999/1", "https://lab", False),
        ("s3://bucket/1", "https://lab", False),
        ("file:///etc", "https://lab", False),
        ("/etc", "http://lab:5000", False),
        ("file:///data/1", "sqlite:////data/mlflow.db", True),
        ("file:///data/1", "postgresql://lab/mlflow", False),
        ("s3://bucket/1", "sqlite:///mlflow.db", False),
    ],
)
def test_where_the_files_of_a_server_are(location: str, tracking_uri: str, same: bool) -> None:
    assert artifact_stores.is_of_server(location, tracking_uri) is same
    foreign = not same and location.startswith(("http", "mlflow"))
    reason = artifact_stores.foreign_host(location, tracking_uri)
    assert reason.endswith("which gets no login of https://lab") if foreign else reason == ""


@pytest.mark.parametrize("scheme", ["mlflow-artifacts", "http"])
@pytest.mark.parametrize(
    "login",
    [{"MLFLOW_TRACKING_TOKEN": "secret"}, {"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "secret"}],
)
def test_a_login_goes_to_the_tracking_server_alone(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, login: dict[str, str]
) -> None:
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    host = files.address.removeprefix("http://")  # type: ignore[attr-defined]
    for tracking_uri, told in (("http://127.0.0.1:9", False), (files.address, True)):  # type: ignore[attr-defined]
        files.logins = []
        store = artifact_stores.store_of(f"{scheme}://{host}/stolen", tracking_uri, tmp_path)
        with pytest.raises(EngineError, match="the server answers 404"), store.settings():
            transfer.content(store, "manifest.json", tmp_path / "part", "it", 10)
        assert all((login is not None) is told for login in files.logins)
        assert files.logins


def test_a_directory_of_this_machine(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "engine").mkdir(parents=True)
    (source / NAME).write_bytes(CONTENT)
    store = artifact_stores.store_of(source.as_uri(), "sqlite:///x", tmp_path)
    assert isinstance(store, LocalStore)
    (tmp_path / "part").write_bytes(CONTENT[:CHUNK])
    assert brought(store, FilePart(tmp_path / "part")) == CONTENT
    with pytest.raises(EngineError, match="cannot download it: No such file"):
        transfer.bring(store, "nothing", DIGEST, FilePart(tmp_path / "other"), "it")


def test_a_store_that_only_mlflow_reads(tmp_path: Path) -> None:
    """The local store by way of MLflow's own repository, which stands for those of clouds."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "model.bin").write_bytes(CONTENT)
    store = artifact_stores.MlflowStore(LocalArtifactRepository(str(tmp_path / "source")), tmp_path, "sqlite:///x")
    (tmp_path / "part").write_bytes(b"rubbish")
    transfer.bring(store, "model.bin", DIGEST, FilePart(tmp_path / "part"), "the model")
    assert (tmp_path / "part").read_bytes() == CONTENT
    with pytest.raises(EngineError, match="cannot download it"):
        transfer.bring(store, "nothing", DIGEST, FilePart(tmp_path / "other"), "it")
