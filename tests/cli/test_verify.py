"""``verify`` says what it looked at, and ends with the first thing that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph.cli import verify
from mlflow_ngraph.engines import verification
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.verification import Check
from tests.support.logged import Logged
from tests.support.published import of_another_model

Cli = Callable[..., tuple[int, str, str]]


def statuses(document: Any) -> dict[str, str]:
    return {check["check"]: check["status"] for check in document["checks"]}


def test_a_good_engine_passes(logged: Logged, cli: Cli, cli_json: Callable[..., Any]) -> None:
    package = str(logged.packages["openvino"])
    document = cli_json("engine", "verify", package)
    assert document["ok"]
    assert statuses(document) == {"trust": "ok", "digests": "ok", "mlflow": "ok", "compatibility": "ok", "probe": "ok"}
    code, out, _ = cli("engine", "verify", package)
    assert code == 0
    assert "by openvino, fp32, batch 1, 4" in out
    assert "what rounding does at fp32" in out


def test_an_empty_path_is_not_the_current_directory(logged: Logged, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(logged.packages["openvino"])
    for words in (["verify", ""], ["sign", "", "--key", "key"]):
        code, _, err = cli("engine", *words)
        assert (code, err) == (2, "error: expected the directory or the address of an engine, found an empty text\n")


def test_a_verdict_that_is_not_ok_is_said_with_the_engine(logged: Logged, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = open_package(logged.packages["openvino"]).manifest
    first, *others = manifest.figures
    doubtful = first.model_copy(update={"verdict": "unverified", "reason": "the model gives NaN"})
    verify.show_trust(manifest.model_copy(update={"figures": [doubtful, *others]}), Check("trust", "ok", "not signed"))
    assert f"unverified at batch {first.batch}: the model gives NaN\n" in capfd.readouterr().out


def test_an_engine_on_a_server_is_checked_with_the_digest_there(logged: Logged, cli_json: Callable[..., Any]) -> None:
    document = cli_json("engine", "verify", f"models:/{logged.models['onnxruntime']}", "--tracking-uri", logged.uri)
    assert "the manifest is the one that was logged" in document["checks"][1]["found"]


def test_speed_is_compared_with_what_was_recorded(
    logged: Logged, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(logged.packages["onnxruntime"])
    for floor, code, status in ((0.0, 0, "ok"), (1e9, 1, "problem")):
        monkeypatch.setattr(verification, "FLOOR", floor)
        found, out, err = cli("engine", "verify", package, "--measure", "--seconds", "0.2", "--json")
        document = json.loads(out)
        assert (found, statuses(document)["throughput"]) == (code, status), err
        assert "samples/s at batch 1" in document["checks"][-1]["found"]


def test_a_damaged_engine_is_never_run(
    logged: Logged, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "engine/model.bin").write_bytes(b"")
    monkeypatch.setattr(verification, "_tried", lambda *_: pytest.fail("it was run"))
    code, out, _ = cli("engine", "verify", str(package), "--json", "--measure")
    document = json.loads(out)
    assert code == 1
    assert statuses(document) == {
        "trust": "ok", "digests": "problem", "compatibility": "skipped", "probe": "skipped", "throughput": "skipped",
    }  # fmt: skip
    assert "engine/model.bin has changed" in document["checks"][1]["found"]


def test_outputs_of_another_model_are_found(logged: Logged, tmp_path: Path, cli: Cli) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    of_another_model(package)
    code, out, _ = cli("engine", "verify", str(package))
    assert code == 1
    assert "its outputs are not those of the model: relative error" in out


def test_an_engine_that_breaks_its_process_is_a_problem(
    logged: Logged, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The runtime is replaced by one that dies as soon as it is imported."""
    (tmp_path / "openvino.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, _ = cli("engine", "verify", str(logged.packages["openvino"]))
    assert code == 1
    assert "the process that tried the engine has ended: killed by SIGABRT" in out


def test_what_lies_in_the_current_directory_is_not_run(
    logged: Logged, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("json", "numpy", "openvino", "mlflow_ngraph"):
        (tmp_path / f"{name}.py").write_text("import os\nos.abort()\n")
    package = logged.packages["openvino"].absolute()
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("engine", "verify", str(package))
    assert code == 0, out


def test_what_is_no_engine_is_a_wrong_request(cli: Cli, tmp_path: Path) -> None:
    for place, said in (
        ("nowhere", "there is no engine package at nowhere"),
        (str(tmp_path), f"{tmp_path} is no engine package: it has no manifest.json"),
    ):
        code, out, err = cli("engine", "verify", place)
        assert (code, out) == (2, "")
        assert said in err
