"""A pull whose connection is cut leaves nothing half done under its name, and the next one goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.release import pulling
from mlflow_ngraph.release.pulling import Pulled, pull_engine
from tests.support.cutting import CuttingProxy
from tests.support.logged import Logged
from tests.support.published import MEGABYTE, own_files, padded, publish

pytestmark = pytest.mark.usefixtures("compilers")

PADDING_MB = {"padding-0.bin": 12, "padding-1.bin": 6, "padding-2.bin": 4, "padding-3.bin": 2}
CUTS = 8
KILLER = """
import sys
from mlflow_ngraph import pull
pull(sys.argv[1], sys.argv[2], tracking_uri=sys.argv[3])
"""


@pytest.fixture(scope="module")
def proxy(
    logged: Logged, mlflow_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CuttingProxy, str, Path]]:
    """A proxy before a real server, an engine of some tens of megabytes on it, and what that consists of."""
    package = padded(logged.copy("onnxruntime", tmp_path_factory.mktemp("padded") / "package"), PADDING_MB)
    with pytest.MonkeyPatch.context() as patch, CuttingProxy(mlflow_server) as proxy:
        remote = publish(package, mlflow_server, patch)
        whole = tmp_path_factory.mktemp("whole") / "engine"
        pull_engine(f"models:/{remote.model_id}", whole, tracking_uri=mlflow_server)
        yield proxy, f"models:/{remote.model_id}", whole


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    """Nobody waits for a server that stays away."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def pulled(proxy: CuttingProxy, uri: str, target: Path) -> Pulled:
    return pull_engine(uri, target, tracking_uri=proxy.uri)


def finished(proxy: CuttingProxy, ground: Path) -> set[str]:
    """Files that an interrupted call brought whole: the server has sent them and they are in their place."""
    there = set(own_files(ground / "package")) if ground.exists() else set()
    sent = {unquote(one.path) for one in proxy.files() if one.whole}
    return {path for path in there if any(name.endswith(f"/{path}") for name in sent)}


class Waved:
    """In the place of the process that tries an engine: what is looked at here ends before it begins."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Waved:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answer(self, _: Path) -> dict[str, Any]:
        return {"problem": "", "judged": True, "parity": {"max_rel": 0.0, "cosine": 1.0}, "precision": "fp32"}


def test_wherever_the_connection_is_cut_the_next_call_completes_the_pull(
    proxy: tuple[CuttingProxy, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, uri, whole = proxy
    monkeypatch.setattr(pulling, "LoadCheck", Waved)
    expected = own_files(whole)
    total = sum((whole / path).stat().st_size for path in expected)
    resumed = 0
    for number in range(CUTS):
        target = tmp_path / f"engine-{number}"
        ground = tmp_path / f".{target.name}.pull"
        server.arm(int(total * (number + 0.5) / CUTS))
        with pytest.raises(NGraphError, match=r"cannot download|cannot find|cannot reach"):
            pulled(server, uri, target)
        assert not target.exists()
        kept = sum(path.stat().st_size for path in (ground / "package").rglob("*") if path.is_file())
        done = finished(server, ground)
        server.arm(None)
        assert pulled(server, uri, target).state == "pulled"
        assert own_files(target) == expected
        open_package(target)
        assert not ground.exists()
        again = {unquote(one.path) for one in server.files()}
        assert not [
            path for path in done if path != "manifest.json" and any(name.endswith(f"/{path}") for name in again)
        ]
        again_bytes = sum(one.sent for one in server.files())
        assert again_bytes <= total - kept, f"cut at {number}: {kept} bytes were there, and {again_bytes} came"
        resumed += any(one.range for one in server.files())
    assert resumed > CUTS // 2


def test_a_server_that_is_back_soon_is_not_noticed(
    proxy: tuple[CuttingProxy, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, uri, whole = proxy
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    server.stays_down = False
    try:
        server.arm(10 * MEGABYTE)
        assert pulled(server, uri, tmp_path / "engine").state == "pulled"
    finally:
        server.stays_down = True
    assert own_files(tmp_path / "engine") == own_files(whole)
    asked = [one.path for one in server.files()]
    assert len(asked) > len(set(asked)), "nothing was cut, so nothing was asked for again"


def test_a_server_without_parts_sends_only_unfinished_files_again(
    proxy: tuple[CuttingProxy, str, Path], tmp_path: Path
) -> None:
    server, uri, whole = proxy
    server.ranges = False
    try:
        server.arm(20 * MEGABYTE)
        with pytest.raises(NGraphError):
            pulled(server, uri, tmp_path / "engine")
        done = finished(server, tmp_path / ".engine.pull")
        assert done
        server.arm(None)
        pulled(server, uri, tmp_path / "engine")
    finally:
        server.ranges = True
    again = [unquote(one.path) for one in server.files()]
    assert not [path for path in done if path != "manifest.json" and any(name.endswith(f"/{path}") for name in again)]
    assert own_files(tmp_path / "engine") == own_files(whole)


def test_a_process_that_is_killed_leaves_what_the_next_one_completes(
    proxy: tuple[CuttingProxy, str, Path], tmp_path: Path
) -> None:
    server, uri, whole = proxy
    target = tmp_path / "engine"
    server.stalls = True
    try:
        server.arm(15 * MEGABYTE)
        process = subprocess.Popen([sys.executable, "-c", KILLER, uri, str(target), server.uri], env=dict(os.environ))
        assert server.stalled.wait(100)
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
    finally:
        server.stalls = False
        server.heal()
    assert not target.exists()
    assert (tmp_path / ".engine.pull").is_dir()
    server.arm(None)
    assert pulled(server, uri, target).state == "pulled"
    assert own_files(target) == own_files(whole)
    assert sum(one.sent for one in server.files()) < sum(PADDING_MB.values()) * MEGABYTE
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]
