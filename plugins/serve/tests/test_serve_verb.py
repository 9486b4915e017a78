"""``serve`` refuses what cannot be served before it becomes a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from filelock import FileLock

from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph_serve import process, source
from mlflow_ngraph_serve.following import engine_process, puller
from mlflow_ngraph_serve.settings import Settings
from tests.support.logged import Logged

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the process would have become."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(process, "become", lambda *what: found.append(what))
    return found


def test_a_package_is_proven_and_then_served(logged: Logged, cli: Cli, became: list[tuple[Any, ...]]) -> None:
    code, _, err = cli("engine", "serve", str(logged.packages["openvino"]), "--port", "0", "--max-p99-ms", "50")
    assert code == 0, err
    ((package, name, settings),) = became
    assert package.directory == logged.packages["openvino"]
    assert name == source.default_name(package)
    assert (settings.port, settings.max_p99_ms, settings.max_batch) == (0, 50.0, None)
    words, env = process.command_of(package, name, settings)
    order = process.Order.parse(words[-1])
    assert (order.digest, order.name, order.settings) == (package.digest, name, settings)
    assert env["OMP_NUM_THREADS"] == "2"
    order.scratch.rmdir()


def test_an_empty_path_is_not_the_current_directory(cli: Cli) -> None:
    assert "found an empty text" in cli("engine", "serve", "")[2]


def test_what_a_killed_server_has_left_is_removed_by_the_next(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, serves, starts = (tmp_path / f"ngraph-serve-{name}" for name in ("left", "serves", "starts"))
    for folder in (left, serves, starts):
        folder.mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "ngraph-serve-link").symlink_to(elsewhere)
    with FileLock(serves / ".lock"):
        for folder in (left, serves, elsewhere):
            os.utime(folder, (0, 0))
        process.ordered(read_manifest(logged.packages["openvino"]), "x", Settings())
    assert [folder.exists() for folder in (left, serves, starts, elsewhere)] == [False, True, True, True]
    assert not list(elsewhere.iterdir())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("sent", ["while it checks", "when it has become the server"])
def test_a_signal_that_comes_early_leaves_nothing(logged: Logged, tmp_path: Path, sent: str) -> None:
    words = [
        sys.executable,
        "-m",
        "mlflow_ngraph",
        "engine",
        "serve",
        str(logged.packages["onnxruntime"]),
        "--port",
        "0",
    ]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    server = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    checks = sent == "while it checks"

    def reached() -> bool:
        if checks:
            # Of the process that tries the engine. Python itself first tries with a file if it can write there.
            return any(tmp_path.glob("ngraph-*"))
        return process.__name__ in Path(f"/proc/{server.pid}/cmdline").read_text()

    while not reached():
        assert server.poll() is None
        time.sleep(0.001)
    server.send_signal(signal.SIGTERM)
    _, said = server.communicate(timeout=60)
    assert (server.returncode, said.split()[-1]) == ((143, "interrupted") if checks else (0, "ended"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "module", [process, engine_process, puller], ids=lambda module: str(module.__name__.rpartition(".")[2])
)
def test_files_in_the_current_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    """A process that gets that far complains of its missing arguments."""
    for name in ("runpy", "json", "typing", "socket", "numpy", "mlflow_ngraph", "mlflow_ngraph_serve"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a stray file was imported')")
    monkeypatch.chdir(tmp_path)
    ended = subprocess.run(command(module.__name__), capture_output=True, text=True, check=False)
    assert f'{module.__file__}", line' in ended.stderr
    assert "stray" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-p99-ms", "0"), "max_p99_ms: "),
        (("--timeout-s", "-1"), "timeout_s: "),
        (("--timeout-s", "inf"), "timeout_s: expected a finite number"),
        (("--host", ""), "host: expected a text of at least 1 characters"),
        (("--max-queue", "1000001"), "1000001"),
        (("--max-body-mb", "4097"), "max_body_mb: expected at most 4096"),
        (("--max-p99-ms", "inf"), "max_p99_ms: expected a finite number"),
        (("--max-delay-ms", "inf"), "max_delay_ms: expected a finite number"),
        (("--max-body-mb", "nan"), "max_body_mb: expected "),
        (
            ("--max-delay-ms", "4000", "--timeout-s", "4"),
            "max_delay_ms must be less than the 4 s that a request may take",
        ),
        (("--name", "a/b"), "'a/b' is no name"),
        (("--workers", "0"), "--workers"),
    ],
)
def test_wrong_options_are_named(
    logged: Logged, cli: Cli, became: list[tuple[Any, ...]], options: tuple[str, ...], said: str
) -> None:
    code, _, err = cli("engine", "serve", str(logged.packages["openvino"]), *options)
    assert (code, became) == (2, [])
    assert said in err


def test_a_damaged_package_is_not_served(
    logged: Logged, tmp_path: Path, cli: Cli, became: list[tuple[Any, ...]]
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "engine/model.bin").write_bytes(b"")
    code, _, err = cli("engine", "serve", str(package))
    assert (code, became) == (1, [])
    assert "engine/model.bin has changed" in err


def test_what_is_no_package_is_a_wrong_request(tmp_path: Path, cli: Cli, became: list[tuple[Any, ...]]) -> None:
    code, _, err = cli("engine", "serve", str(tmp_path))
    assert (code, became) == (2, [])
    assert f"{tmp_path} is no engine package: it has no manifest.json" in err
