"""Engines under names: through MLflow's own client, and at last through its command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.deployments import interface
from mlflow.deployments.cli import commands
from mlflow.exceptions import MlflowException

from mlflow_ngraph import load_model
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph_serve import deployments, process, source
from mlflow_ngraph_serve.client import infer
from mlflow_ngraph_serve.deployments import NGraphDeployments
from mlflow_ngraph_serve.root import Root
from tests.support.logged import Logged
from tests.support.servers import free_port
from tests.support.serving import serving, started


@pytest.fixture
def client(tmp_path: Path) -> NGraphDeployments:
    return NGraphDeployments(f"ngraph:{tmp_path / 'root'}")


@pytest.fixture
def tracking(logged: Logged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", logged.uri)
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    return logged.uri


def packages(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "packages").iterdir())


def test_an_engine_is_kept_under_a_name(client: NGraphDeployments, logged: Logged, tmp_path: Path) -> None:
    made = client.create_deployment("r50", str(logged.packages["onnxruntime"]), config={"max_p99_ms": "50"})
    assert (made["name"], made["flavor"], made["compiler"]) == ("r50", "ngraph", "onnxruntime")
    assert client.get_deployment("r50") == made
    assert client.list_deployments() == [made]
    assert made["config"] == {"max_p99_ms": "50"}
    kept = Path(made["directory"])
    assert kept.is_relative_to(tmp_path / "root")
    with load_model(kept) as engine:
        assert engine.batch_sizes == (1, 4)
    with pytest.raises(MlflowException, match="there is a deployment 'r50'"):
        client.create_deployment("r50", str(logged.packages["openvino"]))
    client.delete_deployment("r50")
    client.delete_deployment("r50")
    assert client.list_deployments() == []
    assert packages(tmp_path / "root") == []
    with pytest.raises(MlflowException, match="there is no deployment 'r50'"):
        client.get_deployment("r50")


def test_rules_are_asked_when_a_deployment_is_used(
    client: NGraphDeployments, logged: Logged, tmp_path: Path, tracking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By where the engine came from, which is not where it is kept."""
    model = f"models:/{logged.models['openvino']}"
    client.create_deployment("server", model)
    client.create_deployment("directory", str(logged.packages["openvino"]))
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"sources: [{{uri: '{tracking}', trust: allowed}}]\n")
    monkeypatch.setenv("NGRAPH_TRUST", str(rules))
    inputs = read_probe(logged.packages["openvino"] / "engine").inputs[0]
    assert client.predict("server", inputs)
    with pytest.raises(MlflowException, match=r"engines from file:///.* are not trusted: no rule allows it"):
        client.predict("directory", inputs)


def test_predictions_are_those_of_the_engine(client: NGraphDeployments, logged: Logged, tmp_path: Path) -> None:
    package = logged.packages["openvino"]
    client.create_deployment("r50", str(package))
    inputs = read_probe(package / "engine").inputs
    array = np.concatenate([inputs[0]] * 5)
    with load_model(package, batching="split") as engine:
        expected = engine.run([array])[0]
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps({"input": array.tolist()}))
    frame = pd.read_json(path)
    for given in (array, {"input": array}, {"input": array.tolist()}, frame):
        found = client.predict("r50", given)
        np.testing.assert_allclose(found["predictions"]["output"], expected, atol=1e-6)
    assert json.loads(found.to_json())["predictions"]["output"]
    with pytest.raises(MlflowException, match="input 'input' has shape"):
        client.predict("r50", np.zeros((1, 3), np.float32))
    with pytest.raises(
        MlflowException, match=r"input 'input' has shape \(\)"
    ):  # a number of the right type, without axes
        client.predict("r50", {"input": 1.5})
    with pytest.raises(MlflowException, match="data must be numbers"):
        client.predict("r50", {"input": ["text"]})
    with pytest.raises(MlflowException, match="no input is called 'x'"):
        client.predict("r50", {"x": [1]})


def test_a_running_server_is_asked_where_the_config_names_one(client: NGraphDeployments, logged: Logged) -> None:
    package = logged.packages["onnxruntime"]
    inputs = read_probe(package / "engine").inputs
    many = np.repeat(inputs[0], 11, axis=0) * np.linspace(-1, 1, 11, dtype=np.float32)[:, None, None]
    with serving(package, max_batch=3) as running:
        client.create_deployment("block", str(package), config={"url": running.url})
        before = running.counter("ngraph_requests_total")
        found = client.predict("block", {"input": inputs[0]})["predictions"]["output"]
        assert running.counter("ngraph_requests_total") == before + 1
        assert np.array(found).shape == inputs[0].shape
        asked = client.predict("block", {"input": many})["predictions"]["output"]
        assert running.counter("ngraph_requests_total") == before + 5
    with pytest.raises(MlflowException, match="does not answer"):
        client.predict("block", {"input": inputs[0]})
    login = running.url.replace("://", "://user:hushhush@")
    assert client.update_deployment("block", config={"url": login})["config"] == {"url": running.url}
    with pytest.raises(MlflowException, match="does not answer") as error:
        client.predict("block", {"input": inputs[0]})
    assert "hushhush" not in str(error.value) + json.dumps(client.get_deployment("block"), default=str)
    client.update_deployment("block", config={"url": ""})
    np.testing.assert_allclose(asked, client.predict("block", {"input": many})["predictions"]["output"], atol=1e-5)


def test_an_option_is_taken_back_by_an_empty_value(client: NGraphDeployments, logged: Logged) -> None:
    client.create_deployment("a", str(logged.packages["onnxruntime"]), config={"max_delay_ms": "7", "port": "0"})
    assert client.update_deployment("a", config={"max_delay_ms": ""})["config"] == {"port": "0"}
    with pytest.raises(MlflowException, match="max_delay_ms: deployment 'a' has no such option"):
        client.update_deployment("a", config={"max_delay_ms": ""})


def test_run_local_says_that_it_has_the_options_of_the_command_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    became: list[tuple[Any, ...]] = []
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path))
    monkeypatch.setattr(source, "obtain", lambda uri: f"the package of {uri}")
    monkeypatch.setattr(process, "become", lambda *what: became.append(what))
    deployments.run_local("r50", "models:/r50@live", config={"port": "0"})
    ((package, name, settings),) = became
    assert (package, name, settings.port) == ("the package of models:/r50@live", "r50", 0)
    said = capfd.readouterr().err
    assert (
        f"{tmp_path / 'deployments'} has no deployment 'r50' of models:/r50@live: the options are those of this" in said
    )


def test_a_damaged_deployment_hides_no_other(
    client: NGraphDeployments, logged: Logged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = client.create_deployment("whole", str(logged.packages["onnxruntime"]))
    gone = client.create_deployment("gone", str(logged.packages["openvino"]))
    shutil.rmtree(gone["directory"])
    (tmp_path / "root/deployments/broken.json").write_text("{")
    broken, missing, listed = client.list_deployments()
    assert listed == whole
    assert [(one["name"], one["flavor"]) for one in (broken, missing)] == [("broken", "ngraph"), ("gone", "ngraph")]
    assert "is not readable" in broken["problem"]
    assert gone["directory"] in missing["problem"]
    assert "deployment broken: " in caplog.text


def test_a_disk_without_room_is_said_in_one_line(
    client: NGraphDeployments, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    many = shutil.Error([("a", "b", f"[Errno 28] {full.strerror}"), ("c", "d", "and so on")])
    old = client.create_deployment("a", str(logged.packages["onnxruntime"]))
    for broken, error in (("shutil.copytree", many), ("os.fsync", full)):
        with monkeypatch.context() as patch:
            patch.setattr(broken, raising(error))
            with pytest.raises(
                MlflowException, match=r"cannot change the deployments at .*: .*No space left"
            ) as caught:
                client.update_deployment("a", str(logged.packages["openvino"]))
        assert "\n" not in str(caught.value)
    assert client.get_deployment("a") == old


def raising(error: OSError) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


def test_an_update_changes_everything_or_nothing(
    client: NGraphDeployments, logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    old = client.create_deployment("r50", str(logged.packages["onnxruntime"]))
    inputs = read_probe(logged.packages["openvino"] / "engine").inputs
    client.predict("r50", inputs[0])
    damaged = logged.copy("openvino", tmp_path / "damaged")
    (damaged / "engine/model.bin").write_bytes(b"")
    with pytest.raises(MlflowException, match=r"engine/model\.bin has changed"):
        client.update_deployment("r50", str(damaged))
    assert client.get_deployment("r50") == old
    with pytest.raises(MlflowException, match="max_batsh: unknown key: did you mean 'max_batch'"):
        client.update_deployment("r50", config={"max_batsh": "2"})
    # As if the process had ended before the record was replaced.
    with monkeypatch.context() as patch:
        patch.setattr(Root, "_write", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.update_deployment("r50", str(logged.packages["openvino"]))
    assert client.get_deployment("r50") == old
    assert len(packages(root)) == 2
    changed = client.update_deployment("r50", str(logged.packages["openvino"]), config={"workers": "2"})
    assert (changed["flavor"], changed["compiler"], changed["config"]) == ("ngraph", "openvino", {"workers": "2"})
    assert changed["created_at"] == old["created_at"]
    assert packages(root) == [changed["manifest_sha256"]]
    assert np.array(client.predict("r50", inputs[0])["predictions"]["output"]).shape == inputs[0].shape


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_a_crash_leaves_is_removed_by_the_next_change(
    client: NGraphDeployments, logged: Logged, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    client.create_deployment("a", str(logged.packages["onnxruntime"]))
    client.create_deployment("b", str(logged.packages["onnxruntime"]))
    assert len(packages(root)) == 1
    shutil.copytree(logged.packages["openvino"], root / ".incoming" / "half")
    (root / "packages" / ("0" * 64)).mkdir()
    (root / "deployments" / "b.halfway").write_text("{")
    client.delete_deployment("b")
    assert not (root / ".incoming").exists()
    assert len(packages(root)) == 1
    assert sorted(path.name for path in (root / "deployments").iterdir()) == ["a.json"]
    assert client.get_deployment("a")["compiler"] == "onnxruntime"


def test_a_package_that_was_damaged_is_not_used(client: NGraphDeployments, logged: Logged) -> None:
    made = client.create_deployment("a", str(logged.packages["openvino"]))
    file = Path(made["directory"]) / "engine/model.bin"
    file.chmod(0o644)
    file.write_bytes(b"")
    with pytest.raises(MlflowException, match=r"engine/model\.bin has changed"):
        client.predict("a", np.zeros((1, 10, 16), np.float32))
    # The same engine again mends it.
    client.update_deployment("a", str(logged.packages["openvino"]))
    assert client.predict("a", np.zeros((1, 10, 16), np.float32))["predictions"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.create_deployment("a/b", "x"), "'a/b' is no name"),
        (lambda client: client.create_deployment("..", "x"), "'..' is no name"),
        (lambda client: client.create_deployment("a", "/nowhere"), "there is no engine package at /nowhere"),
        (lambda client: client.create_deployment("a", "x", flavor="onnx"), "deploys the flavor ngraph, not 'onnx'"),
        (lambda client: client.create_deployment("a", "x", endpoint="e"), "has no endpoints"),
        (lambda client: client.create_deployment("a", "x", config={"port": "p"}), "port: "),
        (lambda client: client.create_deployment("a", "x", config={"url": "ftp://x"}), "url: must begin with http"),
        (lambda client: client.update_deployment("a"), "there is no deployment 'a'"),
        (lambda client: NGraphDeployments("ngraph:relative/dir"), "ngraph:relative/dir: give the whole path"),
        (lambda client: client.explain("a"), "explains no predictions"),
        (lambda client: client.predict("a", []), "there is no deployment 'a'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(client: NGraphDeployments, call: Any, said: str) -> None:
    with pytest.raises(MlflowException, match=said) as error:
        call(client)
    assert "\n" not in str(error.value)


def test_mlflow_finds_what_it_looks_for() -> None:
    from mlflow.deployments.plugin_manager import DeploymentPlugins

    plugins = DeploymentPlugins()
    plugins.register("ngraph", "mlflow_ngraph_serve.deployments")
    assert plugins["ngraph"] is deployments
    text = deployments.target_help()
    assert "max_p99_ms: The bound" in text
    assert "ngraph:/DIRECTORY" in text


def test_a_registered_engine_is_pulled(client: NGraphDeployments, logged: Logged, tracking: str) -> None:
    made = client.create_deployment("r50", f"models:/{logged.models['openvino']}")
    assert made["model_uri"] == f"models:/{logged.models['openvino']}"
    (package,) = packages(Path(made["directory"]).parents[1])
    assert package == made["manifest_sha256"]
    assert not list(Path(made["directory"]).glob(".*"))


@pytest.mark.usefixtures("compilers")
def test_the_command_line_of_mlflow_deploys_serves_and_predicts(logged: Logged, tracking: str, tmp_path: Path) -> None:
    registry = MlflowClient(tracking)
    version = mlflow.register_model(f"models:/{logged.models['onnxruntime']}", "deployed")
    registry.set_registered_model_alias("deployed", "champion", version.version)
    uri = "models:/deployed@champion"
    # MLflow takes long to start: one process of its own shows that it finds the plugin, and the others are this one.
    helped = subprocess.run(
        [sys.executable, "-m", "mlflow", "deployments", "help", "-t", "ngraph"],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "ngraph:/DIRECTORY" in helped.stdout
    interface.plugin_store.register("ngraph", "mlflow_ngraph_serve.deployments")

    def call(verb: str, *options: str, code: int = 0) -> str:
        done = CliRunner().invoke(commands, [verb, "-t", "ngraph", *options])
        assert done.exit_code == code, done.output
        return str(done.output)

    assert "max_p99_ms" in call("help")
    assert "ngraph deployment r50 is created" in call("create", "-m", uri, "--name", "r50", "-C", "max_delay_ms=1")
    assert "'name': 'r50'" in call("list")
    said = call("get", "--name", "r50")
    assert f"model_uri: {uri}" in said
    assert "compiler: onnxruntime" in said
    inputs = read_probe(logged.packages["onnxruntime"] / "engine").inputs
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps({"input": inputs[0].tolist()}))
    here = json.loads(call("predict", "--name", "r50", "-I", str(file)))["predictions"]["output"]
    port = free_port()
    local = ["mlflow", "deployments", "run-local", "-t", "ngraph", "-m", uri, "--name", "r50", "-C", f"port={port}"]
    with started(local, port, tmp_path / "log") as server:
        served = infer(server.url, "r50", {"input": inputs[0]})["output"]
        np.testing.assert_allclose(served, here, atol=1e-6)
        # The options of the deployment hold.
        assert "waiting at most 1 ms" in server.log.read_text()
    assert "is updated (with flavor ngraph)" in call("update", "--name", "r50", "-C", "max_delay_ms=2")
    refused = call("create", "-m", uri, "--name", "r50", code=1)
    assert refused.startswith("Error: there is a deployment 'r50'")
    assert "explains no predictions" in call("explain", "--name", "r50", "-I", str(file), code=1)
    assert "is deleted" in call("delete", "--name", "r50")
