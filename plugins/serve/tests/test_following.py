"""A device that follows an alias: what is good takes over, what is not goes back, and clients notice little of either."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import requests

from mlflow_ngraph.cli.app import run
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph_serve.following import handover
from mlflow_ngraph_serve.following.channel import Channel
from mlflow_ngraph_serve.following.engine_server import Public
from mlflow_ngraph_serve.following.followed import Champion
from mlflow_ngraph_serve.following.follower_state import FollowerState, KeptEngine
from mlflow_ngraph_serve.listening import listen
from mlflow_ngraph_serve.settings import Settings
from tests.support.following import DEVICE, PATIENCE_S, Client, Following, following
from tests.support.logged import Logged
from tests.support.planted import Plant, Registry, replaying
from tests.support.servers import OURS, free_port, serve

OFTEN = ("--every", "0.3s")


@pytest.fixture(scope="module")
def shop(
    fake_compiler: None, logged: Logged, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Registry]]:
    """A tracking server, and registered models on it: each call makes one that nobody else has."""
    home = tmp_path_factory.mktemp("shop")
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    store = f"sqlite:///{home / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch, serve(home, store) as uri:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        for name in OURS:
            patch.delenv(name, raising=False)
        package = replaying(logged.packages["onnxruntime"], home / "fake")
        registry = Registry(uri, package, home / "changed", home / "artifacts")
        models = iter(range(100))
        yield lambda: replace(registry, name=f"model{next(models)}")


@pytest.fixture
def registry(shop: Callable[[], Registry]) -> Registry:
    return shop()


@pytest.fixture
def port() -> int:
    return free_port()


def served(registry: Registry, port: int) -> str:
    return f"http://127.0.0.1:{port}/v2/models/{registry.name}/infer"


def children(follower: Following) -> list[psutil.Process]:
    return psutil.Process(follower.process.pid).children(recursive=True)


def until_told(registry: Registry, version: str, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (registry.tag(version, DEVICE) or "").startswith(text):
        assert time.monotonic() < deadline, registry.tag(version, DEVICE)
        time.sleep(0.1)


def more_answers(client: Client) -> Callable[[], bool]:
    before = len(client.answered)
    return lambda: len(client.answered) > before + 20


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive


def test_a_champion_takes_over_without_a_request_lost(
    registry: Registry, logged: Logged, port: int, tmp_path: Path
) -> None:
    packages = [logged.packages["onnxruntime"], logged.packages["openvino"]]
    first, second = (registry.register(package=package) for package in packages)
    registry.move(first)
    options = ("--serve", "--to", str(tmp_path / "kept"), "--port", str(port), "--watch-for", "2s", *OFTEN)
    with following(registry.source, registry.uri, tmp_path / "log", *options) as follower:
        follower.said(f"moved: version {first} serves at http://127.0.0.1:{port}/")
        follower.said(f"version {first} has served 2 s without a fault: it stays")
        url = served(registry, port)
        with Client(url, packages[0]).asking() as client, Client(url, packages[0], keeps=True).asking() as keeping:
            registry.move(second)
            follower.said(f"moved: version {second} serves at http://127.0.0.1:{port}/")
            follower.said(f"version {second} has served 2 s without a fault: it stays")
        for asking in (client, keeping):
            assert (asking.lost, asking.wrong) == ([], 0)
            assert asking.versions()[0] != asking.versions()[-1]
        assert len(keeping.versions()) == 2, "it has let go of its connection to the old one"
        assert f"in place of version {first}" in follower.text
        assert open_package(tmp_path / "kept" / "current").manifest.spec.compiler == "openvino"
        until_told(registry, second, "serving")
        assert registry.tag(first, DEVICE) is None
        follower.process.send_signal(signal.SIGTERM)
        started = children(follower)
        assert follower.process.wait(60) == 0
        assert gone(started)
    with pytest.raises(requests.ConnectionError):
        requests.get(served(registry, port), timeout=5)


REFUSED: dict[Plant, str] = {
    "outputs": "its outputs are not those of the model",
    "machine": "does not fit this machine",
    "file": "is not what was logged",
    "load": "killed by SIGSEGV during probe",
}


def test_what_does_not_prove_itself_never_gets_to_clients(registry: Registry, port: int, tmp_path: Path) -> None:
    good, bad = registry.register(), {plant: registry.register(plant) for plant in REFUSED}
    registry.move(good)
    options = ("--serve", "--to", str(tmp_path / "kept"), "--port", str(port), "--watch-for", "0.5s", *OFTEN)
    with following(registry.source, registry.uri, tmp_path / "log", *options) as follower:
        follower.said(f"version {good} has served")
        with Client(served(registry, port), registry.package).asking() as client:
            for plant, reason in REFUSED.items():
                registry.move(bad[plant])
                follower.said(f"refused: version {bad[plant]}: ")
                assert reason in follower.lines[-1][1]
            registry.move(good)
            follower.said(f"version {good} is the champion, and serves")
        assert (client.lost, client.wrong, len(client.versions())) == ([], 0, 1)
        for version in bad.values():
            until_told(registry, version, "refused: ")


@pytest.mark.long
def test_what_fails_while_it_is_watched_is_taken_back(registry: Registry, port: int, tmp_path: Path) -> None:
    good, crashing, failing = (registry.register(plant) for plant in ("good", "later", "failing"))
    registry.move(good)
    kept = tmp_path / "kept"
    options = ("--serve", "--to", str(kept), "--port", str(port), *OFTEN)
    with following(registry.source, registry.uri, tmp_path / "log", *options, "--watch-for", "1s") as follower:
        follower.said(f"version {good} has served")
    with following(registry.source, registry.uri, tmp_path / "log", *options, "--watch-for", "120s") as follower:
        follower.said(f"version {good} serves at")
        for bad in (crashing, failing):
            with Client(served(registry, port), registry.package).asking() as client:
                registry.move(bad)
                moved = follower.said(f"moved: version {bad} serves")
                back = follower.said(f"went back: version {good} serves; version {bad} is refused: after")
                follower.said_nothing_for(more_answers(client))
            versions = client.versions()
            assert client.wrong == 0
            assert versions[0] == versions[-1]
            assert all(moved - 1 < sent < back + 1 for sent, _, _ in client.lost)
            state = json.loads((kept / "state.json").read_text())
            assert (state["good"]["version"], state["refused"]["version"]) == (good, bad)
        assert "was killed by SIGSEGV" in follower.text
        # Not again, until the alias has pointed at another version; and no client is needed to find out.
        lines = len(follower.lines)
        registry.move(good)
        follower.said(f"version {good} is the champion, and serves", lines)
        registry.move(crashing)
        follower.said(f"went back: version {good} serves", lines)
        until_told(registry, crashing, "refused: after ")
        until_told(registry, good, "serving")


@pytest.mark.long
def test_a_follower_that_was_killed_serves_again_although_the_server_is_away(
    registry: Registry, port: int, tmp_path: Path
) -> None:
    """What it refused is refused for the next one, too."""
    good, bad = registry.register(), registry.register("load")
    registry.move(good)
    kept = tmp_path / "kept"
    options = ("--serve", "--to", str(kept), "--port", str(port), "--watch-for", "0.5s", *OFTEN)
    with following(registry.source, registry.uri, tmp_path / "log", *options) as follower:
        follower.said(f"version {good} has served")
        registry.move(bad)
        follower.said(f"refused: version {bad}: ")
        started = children(follower)
        assert started
        follower.process.kill()
        assert gone(started)
    with following(registry.source, "http://127.0.0.1:1", tmp_path / "log", *options) as follower:
        follower.said(f"version {good} serves at")
        follower.said("nothing answers there")
        with Client(served(registry, port), registry.package).asking() as client:
            follower.said_nothing_for(more_answers(client))
        assert (client.lost, client.wrong) == ([], 0)
        follower.process.send_signal(signal.SIGINT)
        assert follower.process.wait(60) == 0
    with following(registry.source, registry.uri, tmp_path / "log", *options) as follower:
        follower.said(f"version {good} serves at")
        (server,) = (child for child in children(follower) if "engine_process" in " ".join(child.cmdline()))
        lines = len(follower.lines)
        server.kill()
        follower.said(f"version {good} does not serve any more: it was killed by SIGKILL; it is started again", lines)
        follower.said(f"version {good} serves at", lines)
        assert f"version {bad}" not in follower.text
    # Damaged where it lies, it is brought again, although the alias points elsewhere.
    (kept / "current" / "engine" / "probe.npz").write_bytes(b"")
    with following(registry.source, registry.uri, tmp_path / "log", *options) as follower:
        follower.said(f"version {good} cannot be served: ")
        follower.said(f"version {good} is whole here")
        follower.said(f"version {good} serves at")
    with following(registry.source, registry.uri, tmp_path / "log", *options, "--again") as follower:
        follower.said(f"refused: version {bad}: ")


def test_without_serving_a_link_leads_to_the_champion(registry: Registry, tmp_path: Path) -> None:
    first, bad, second = registry.register(), registry.register("outputs"), registry.register()
    other = registry.register("workload")
    kept = tmp_path / "kept"
    with following(registry.source, registry.uri, tmp_path / "log", "--to", str(kept), *OFTEN) as follower:
        follower.said("no version has this alias: waiting for one")
        registry.move(first)
        follower.said(f"moved: version {first} is at {kept / 'current'}")
        before = (kept / "current").readlink()
        registry.move(bad)
        follower.said(f"refused: version {bad}: ")
        assert (kept / "current").readlink() == before
        registry.move(second)
        follower.said(f"moved: version {second} is at")
        assert (kept / "current").readlink() != before
        open_package(kept / "current")
        before = (kept / "current").readlink()
        registry.move(other)
        follower.said(f"refused: version {other}: clients know another workload: ")
        assert (kept / "current").readlink() == before
        assert run(["fleet", "follow", registry.source, "--to", str(kept), "--tracking-uri", registry.uri]) == 2
    allowed = ("--to", str(kept), "--again", "--allow-other-interface", *OFTEN)
    with following(registry.source, registry.uri, tmp_path / "log", *allowed) as follower:
        follower.said(f"moved: version {other} is at")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("models:/champion/3",), "is no alias that could be followed"),
        (("models:/champion@v1",), "alias 'v1'"),
        (("models:/champion@live", "--every", "soon"), "--every: expected a duration"),
        (("models:/champion@live", "--port", "80", "--watch-for", "3s"), "--port, --watch-for: only with --serve"),
        (("models:/champion@live", "--serve", "--name", "a/b"), "'a/b' is no name"),
    ],
)
def test_wrong_requests_are_refused(
    arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert run(["fleet", "follow", *arguments]) == 2
    assert said in capfd.readouterr().err


def test_a_channel_says_when_nobody_is_there() -> None:
    mine, end = Channel.pair()
    other = Channel(end)
    other.send(text="a\nb")
    other.send(number=2)
    assert mine.wait(10) == [{"text": "a\nb"}, {"number": 2}]
    assert mine.receive() == []
    end.send(b'{"half": ')
    assert mine.receive() == []
    end.send(b"1}\n")
    other.close()
    assert mine.wait(10) == [{"half": 1}]
    assert mine.ended
    mine.send(into="the void")
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def test_somebody_takes_connections_until_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What connects while a socket is open and nobody accepts would be reset."""
    ended: list[list[object]] = []

    def end_all(servers: list[object]) -> bool:
        ended.append(servers)
        return True

    monkeypatch.setattr(handover, "end_all", end_all)
    with listen("127.0.0.1", 0) as listening:
        public = Public("net", Settings.read({}), listening)
        ignore: Any = lambda *_: None  # noqa: E731
        following = handover.Handover(FollowerState(tmp_path), public, 1.0, ignore, ignore, ignore)
        standby, serving = object(), object()
        following._standby, following._serving = cast(Any, standby), cast(Any, serving)
        assert following.end()
        assert ended == [[standby], [serving]]
        assert listening.fileno() == -1


def engine(keeping: FollowerState, version: str) -> KeptEngine:
    champion = Champion(version, f"m-{version}")
    place = keeping.place(champion)
    place.mkdir(exist_ok=True)
    return KeptEngine(version, champion.model_id, "0" * 64, str(place))


def test_what_is_kept_survives_and_what_nothing_names_goes(tmp_path: Path) -> None:
    keeping = FollowerState(tmp_path / "kept")
    with keeping.held() as problem:
        assert problem == ""
        engines = [engine(keeping, version) for version in ("1", "2", "3", "4")]
        for kept in engines[:3]:
            keeping.keep(kept)
        keeping.refuse(Champion("5", "m-5"), "it fails")
        with (
            pytest.raises(UsageError, match="another process follows this alias"),
            FollowerState(tmp_path / "kept").held(),
        ):
            pass
    again = FollowerState(tmp_path / "kept")
    with again.held():
        assert (again.good, again.before) == (engines[2], engines[1])
        assert again.refused is not None
        assert (again.refused.champion, again.refused.reason) == (Champion("5", "m-5"), "it fails")
        assert {Path(kept.directory).exists() for kept in engines[1:3]} == {True}
        assert {Path(kept.directory).exists() for kept in (engines[0], engines[3])} == {False}
        assert again.current.resolve() == Path(engines[2].directory)
    (tmp_path / "kept" / "state.json").write_text("{")
    damaged = FollowerState(tmp_path / "kept")
    with damaged.held() as problem:
        assert "state.json is not readable, and begun anew" in problem
        assert damaged.good is None
