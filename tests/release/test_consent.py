"""A program of somebody else runs once it is allowed by a rule or its user; data for a runtime, and one's own, as ever."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli.app import run
from mlflow_ngraph.compilers.openvino.adapter import OpenVINO
from mlflow_ngraph.engines import load_check, local_engine
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.release import consent
from mlflow_ngraph.release.pulling import pull_engine
from mlflow_ngraph.tracking.download import Remote, of_model
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_engines.logged_engine import check_whole
from tests.support.logged import Logged
from tests.support.published import directory_of, publish, rewrite

ASKED = "it contains a program, which runs with your rights, and no rule allows it: to run it give --run"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of one's own, in which engines of OpenVINO are programs."""
    monkeypatch.delenv("NGRAPH_TRUST", raising=False)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(OpenVINO, "program", "a program")
    return tmp_path / "home"


@pytest.fixture
def remote(logged: Logged, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Remote:
    return publish(logged.packages["openvino"], sqlite_uri, monkeypatch)


def doors(package: Path, remote: Remote, target: Path) -> dict[str, Any]:
    """Ways to load an engine, by name."""
    uri = f"models:/{remote.model_id}"
    return {
        "pull": lambda **how: pull_engine(remote, target, **how),
        "load_model of a directory": lambda **how: mlflow_ngraph.load_model(package, **how).close(),
        "load_model": lambda **how: mlflow_ngraph.load_model(uri, tracking_uri=remote.tracking_uri, **how).close(),
        # MLflow's own has no such argument: the home remembers.
        "pyfunc": lambda run=False: (
            mlflow_ngraph.load_model(package, run=True).close() if run else mlflow.pyfunc.load_model(str(package))
        ),
    }


@pytest.mark.parametrize("door", ["pull", "load_model of a directory", "load_model", "pyfunc"])
def test_a_program_runs_after_consent_only_and_that_is_remembered(
    door: str, logged: Logged, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = doors(logged.packages["openvino"], remote, tmp_path / "engine")[door]
    with monkeypatch.context() as patch:
        for place, name in ((local_engine.LoadedEngine, "_engine"), (load_check, "Child")):
            patch.setattr(place, name, lambda *_: pytest.fail("it ran"))
        with pytest.raises(EngineError, match=ASKED):
            load()
    load(run=True)
    load()


def test_verify_says_it_before_anything_runs(logged: Logged, capfd: pytest.CaptureFixture[str]) -> None:
    def verify(*options: str) -> tuple[int, list[dict[str, str]]]:
        capfd.readouterr()
        code = run(["engine", "verify", str(logged.packages["openvino"]), "--json", *options])
        return code, json.loads(capfd.readouterr().out)["checks"]

    code, checks = verify()
    assert (code, [check["status"] for check in checks]) == (1, ["ok", "ok", "ok", "ok", "problem"])
    assert "it contains a program" in checks[0]["found"]
    assert ASKED in checks[-1]["found"]
    assert verify("--run")[0] == 0
    assert verify()[0] == 0


def test_a_rule_is_consent(logged: Logged, home: Path) -> None:
    home.mkdir()
    (home / "trust.yaml").write_text("sources: [{uri: '*', trust: allowed}]\n")
    mlflow_ngraph.load_model(logged.packages["openvino"]).close()
    with pytest.raises(EngineError, match=ASKED):
        mlflow_ngraph.load_model(logged.packages["openvino"], trust="any")


def test_what_this_home_has_compiled_needs_no_consent(
    logged: Logged, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = open_package(logged.packages["openvino"])
    study = home / "studies" / package.manifest.origin.study_id
    study.mkdir(parents=True)
    (study / journal.FILE_NAME).touch()
    event = {"event": "engine_built", "files": package.manifest.engine_files(), "reused": None}
    for changed, own in (
        ({}, True),
        ({"files": {**event["files"], "model.bin": "0" * 64}}, False),  # type: ignore[dict-item] # by name
        ({"reused": {"tracking_uri": "https://mlflow.example.com"}}, False),
        ({"reused": {"tracking_uri": None}}, True),
    ):
        monkeypatch.setattr(journal, "read", lambda _, new=changed: iter([{**event, **new}]))
        assert consent._compiled_here(package.manifest, home) is own
    (study / home_directory.IMPORTED_FROM).touch()
    assert not consent._compiled_here(package.manifest, home)


def test_a_pull_writes_anew_what_mlflow_would_run(remote: Remote, tmp_path: Path) -> None:
    """The server's MLmodel, requirements and wheel may say what they like."""
    there = directory_of(remote)
    (wheel,) = (there / "wheels").iterdir()
    for name in ("MLmodel", "requirements.txt", "conda.yaml", "python_env.yaml", f"wheels/{wheel.name}"):
        (there / name).write_text("evil")
    pulled = pull_engine(remote, tmp_path / "engine", run=True)
    for file in pulled.directory.rglob("*"):
        assert file.is_dir() or b"evil" not in file.read_bytes()[:4]
    model = mlflow.pyfunc.load_model(str(pulled.directory))
    assert model.metadata.run_id == remote.run_id
    assert pull_engine(remote, tmp_path / "engine").state == "unchanged"


def test_only_what_a_run_has_recorded_is_promoted_and_signed(
    logged: Logged,
    tmp_path: Path,
    signing_key: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A clone with the tags of an honest engine, and another file."""
    client = MlflowClient(logged.uri)
    honest = client.get_logged_model(logged.models["openvino"])
    check_whole(client, honest, of_model(honest, logged.uri))
    package = logged.copy("openvino", tmp_path / "clone")
    file = package / "engine" / "explanation-b1.json"
    file.write_bytes(file.read_bytes() + b" ")

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"]["engine/explanation-b1.json"] = sha256(file)
        manifest["size_bytes"] += 1

    rewrite(package, change)
    clone = publish(package, logged.uri, monkeypatch)
    kept = (Tag.STUDY_ID, Tag.ENGINE_ID, Tag.ENGINE_KEY)
    client.set_logged_model_tags(clone.model_id, {name: honest.tags[name] for name in kept})
    for source_run_id, said in ((None, "run None recorded: its study is"), (honest.source_run_id, "its digest is")):
        model = SimpleNamespace(tags=client.get_logged_model(clone.model_id).tags, source_run_id=source_run_id)
        with pytest.raises(EngineError, match=said):
            check_whole(client, model, clone)
    uri = f"models:/{clone.model_id}"
    for verb in (["sign", uri, "--key", str(signing_key)], ["promote", uri, "--name", "clone", "--force"]):
        assert run(["engine", *verb, "--tracking-uri", logged.uri]) == 1
        assert "is not the one that run None recorded" in " ".join(capfd.readouterr().err.split())
    assert Tag.SIGNED_BY not in client.get_logged_model(clone.model_id).tags
