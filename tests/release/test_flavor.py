"""Engines are models of MLflow: saved, logged, registered, loaded and served with nothing but what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

import mlflow_ngraph
from mlflow_ngraph import parity
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import EngineError, TrackingError, UsageError
from mlflow_ngraph.release.flavor import PyfuncEngine
from mlflow_ngraph.tracking.schema import Tag
from tests.support.logged import COMPILERS, Logged
from tests.support.mortal import mortal
from tests.support.servers import QUIET, free_port

BOTH = pytest.mark.parametrize("compiler", COMPILERS)


@pytest.fixture
def tracking(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", logged.uri)
    return logged.uri


def check(outputs: Any, package: Path) -> None:
    reference = read_probe(package / "engine").outputs
    (found,) = outputs.values()
    assert parity.problem(parity.compare([np.asarray(found, np.float32)], reference), "fp32") is None


@BOTH
@pytest.mark.usefixtures("tracking")
def test_pyfunc_loads_what_a_study_logged(logged: Logged, compiler: str) -> None:
    model = mlflow.pyfunc.load_model(f"models:/{logged.models[compiler]}")
    inputs = read_probe(logged.packages[compiler] / "engine").inputs
    check(model.predict({"input": inputs[0]}), logged.packages[compiler])
    assert model.predict({"input": np.repeat(inputs[0], 7, axis=0)})["output"].shape == (7, 10, 16)
    assert [spec.name for spec in model.metadata.signature.inputs] == ["input"]
    with pytest.raises(MlflowException, match="shape"):
        model.predict({"input": np.zeros((1, 3), np.float32)})


class Failing:
    """An engine that fails as runtimes do."""

    inputs = ()

    def run(self, given: Any) -> Any:
        raise EngineError("/home/somebody/package: it failed") from RuntimeError(
            "no row 50\nat /home/somebody/model.py"
        )


def test_what_pyfunc_refuses_is_an_error_of_mlflow_in_one_line() -> None:
    engine = PyfuncEngine(Failing())  # type: ignore[arg-type] # as much of an engine as is asked
    for given, said in (({"ids": [50]}, "no row 50 at model.py"), ([50], "expected a mapping with the inputs")):
        with pytest.raises(MlflowException) as error:
            engine.predict(given)
        assert type(error.value) is MlflowException
        assert error.value.error_code == "INVALID_PARAMETER_VALUE"
        assert said in error.value.message


@BOTH
def test_an_environment_names_the_runtime_of_this_engine_only(logged: Logged, compiler: str) -> None:
    package = logged.packages[compiler]
    lines = (package / "requirements.txt").read_text().split()
    (wheel,) = (package / "wheels").iterdir()
    version = open_package(package).manifest.spec.packages[compiler]
    assert lines == [f"mlflow=={mlflow.__version__}", f"./wheels/{wheel.name}", f"{compiler}=={version}"]
    conda = yaml.safe_load((package / "conda.yaml").read_text())
    assert conda["dependencies"][-1]["pip"] == lines
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    assert {"mlflow_ngraph/__init__.py", "mlflow_ngraph/release/flavor.py", "mlflow_ngraph/studies/quick.yaml"} <= set(
        names
    )
    assert not [name for name in names if name.startswith("tests")]


def test_the_wheel_installs(logged: Logged, tmp_path: Path) -> None:
    (wheel,) = (logged.packages["openvino"] / "wheels").iterdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "mlflow_ngraph" / "release" / "flavor.py").is_file()


def test_a_registered_engine_is_loaded_by_its_alias(logged: Logged, tracking: str) -> None:
    client = MlflowClient(tracking)
    version = mlflow.register_model(f"models:/{logged.models['openvino']}", "packages")
    client.set_registered_model_alias("packages", "champion", version.version)
    inputs = read_probe(logged.packages["openvino"] / "engine").inputs
    for uri in ("models:/packages@champion", f"models:/packages/{version.version}"):
        with mlflow_ngraph.load_model(uri) as engine:
            check(engine.run({"input": inputs[0]}), logged.packages["openvino"])
    check(
        mlflow.pyfunc.load_model("models:/packages@champion").predict({"input": inputs[0]}), logged.packages["openvino"]
    )
    client.set_model_version_tag("packages", version.version, Tag.MANIFEST_SHA256, "0" * 64)
    with pytest.raises(EngineError, match="was registered with the manifest 0000"):
        mlflow_ngraph.load_model("models:/packages@champion")


@pytest.mark.usefixtures("tracking")
def test_what_names_no_engine_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="names no engine: give models:/NAME@ALIAS"):
        mlflow_ngraph.load_model("runs:/x/y")
    with pytest.raises(TrackingError, match="cannot find models:/none@such"):
        mlflow_ngraph.load_model("models:/none@such")
    with pytest.raises(EngineError, match="there is no engine package at"):
        mlflow_ngraph.load_model(tmp_path / "none")
    for call in (mlflow_ngraph.load_model, lambda source: mlflow_ngraph.save_model(source, tmp_path / "new")):
        with pytest.raises(UsageError, match="found an empty text"):
            call("")


def test_saving_makes_a_package_like_the_first(logged: Logged, tmp_path: Path) -> None:
    package = logged.packages["onnxruntime"]
    mlflow_ngraph.save_model(package, tmp_path / "saved", extra_pip_requirements=["click"])
    saved = open_package(tmp_path / "saved")
    before = open_package(package).manifest
    assert saved.manifest.engine_files() == before.engine_files()
    assert saved.manifest.model_copy(update={"files": before.files}) == before
    assert (tmp_path / "saved/requirements.txt").read_text().endswith("click\n")
    inputs = read_probe(package / "engine").inputs
    check(mlflow.pyfunc.load_model(str(tmp_path / "saved")).predict({"input": inputs[0]}), package)
    with pytest.raises(UsageError, match="is not empty"):
        mlflow_ngraph.save_model(package, tmp_path / "saved")
    with pytest.raises(UsageError, match="is inside of the engine package"):
        mlflow_ngraph.save_model(package, tmp_path / "saved" / "engine" / "another")
    mlflow_ngraph.save_model(package, tmp_path / "bare", pip_requirements=["openvino"])
    assert (tmp_path / "bare/requirements.txt").read_text() == "openvino\n"
    assert not (tmp_path / "bare/wheels").exists()


def test_logging_brings_an_engine_to_another_server(
    logged: Logged, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    with mlflow_ngraph.load_model(logged.packages["openvino"]) as engine:
        info = mlflow_ngraph.log_model(engine, registered_model_name="moved", tags={"by": "hand"})
    model = MlflowClient(sqlite_uri).get_logged_model(info.model_id)
    assert model.tags[Tag.COMPILER] == "openvino"
    assert model.tags["by"] == "hand"
    with mlflow_ngraph.load_model("models:/moved/1") as again:
        assert open_package(again.directory).digest == model.tags[Tag.MANIFEST_SHA256]


def test_pyfunc_loads_no_damaged_engine(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "engine/model.bin").write_bytes(b"other")
    with pytest.raises(EngineError, match=r"engine/model.bin has changed"):
        mlflow.pyfunc.load_model(str(package))


@pytest.mark.usefixtures("compilers")
def test_mlflow_predicts_and_serves(logged: Logged, tmp_path: Path) -> None:
    package = logged.packages["openvino"]
    inputs = read_probe(package / "engine").inputs
    request = json.dumps({"inputs": {"input": inputs[0].tolist()}})
    (tmp_path / "in.json").write_text(request)
    env = {**os.environ, **QUIET, "MLFLOW_TRACKING_URI": logged.uri}
    model = f"models:/{logged.models['openvino']}"
    mlflow_models = [sys.executable, "-m", "mlflow", "models"]
    how = ["-m", model, "--env-manager", "local"]
    files = ["-i", str(tmp_path / "in.json"), "-t", "json", "-o", str(tmp_path / "out.json")]
    subprocess.run([*mlflow_models, "predict", *how, *files], env=env, check=True, capture_output=True, cwd=tmp_path)
    check(json.loads((tmp_path / "out.json").read_text())["predictions"], package)
    port = free_port()
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(
        [*mlflow_models, "serve", *how, "-h", "127.0.0.1", "-p", str(port)], env=env, stdout=log, stderr=log, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    try:
        with mortal(-server.pid):
            status, answer = _asked(port, request)
            assert status == 200, answer
            check(json.loads(answer)["predictions"], package)
            status, answer = _asked(port, json.dumps({"inputs": {"input": [[1.0]]}}))
            assert status == 400, answer
    finally:
        os.killpg(server.pid, 15)
        server.wait(20)
        log.close()


def _asked(port: int, body: str) -> tuple[int, str]:
    """Ask until the server is there."""
    deadline = time.monotonic() + 90
    while True:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body.encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
