"""The command that is printed with an engine that does not fit builds one that does."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from mlflow_ngraph.cli.app import cli
from mlflow_ngraph.compilers.host import isa
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.release.pulling import pull_engine
from mlflow_ngraph.tracking.schema import Tag
from tests.support.logged import BATCHES, WORKLOAD, Logged
from tests.support.onnx_models import residual_block
from tests.support.published import publish, rewrite

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]


def printed(package: Path, uri: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command in the message of a pull that is refused."""
    with pytest.raises(EngineError) as error:
        pull_engine(publish(package, uri, monkeypatch), target)
    found = re.search(r"does not fit this machine: .*; build it here: (mlflow-ngraph .*)$", str(error.value))
    assert found, str(error.value)
    return shlex.split(found[1])


def test_the_command_for_another_release_is_one_that_can_be_run(
    logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    rewrite(package, lambda manifest: manifest["spec"]["requires"].update(openvino="2019.1.0"))
    command = printed(package, sqlite_uri, tmp_path / "engine", monkeypatch)
    assert command[0] == "mlflow-ngraph"
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    told = CliRunner().invoke(cli, [*command[1:], "--dry-run", "--json"])
    assert told.exit_code == 0, told.output
    plan = json.loads(told.stdout)
    lanes = {(lane["compiler"], lane["workload"].partition("?")[0]) for lane in plan["lanes"]}
    assert ("openvino", WORKLOAD.partition("?")[0]) in lanes


def test_the_command_works_as_it_is_printed(
    logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_folder: Path
) -> None:
    """For a file, and for other instruction sets."""
    package = logged.copy("onnxruntime", tmp_path / "package")
    (tmp_path / "model").mkdir()
    workload = f"onnx:{residual_block(tmp_path / 'model').path}"

    def alter(manifest: dict) -> None:
        manifest["spec"]["requires"].update(isa="aarch64 neon sve")
        manifest["spec"]["workload"] = workload

    rewrite(package, alter)
    command = printed(package, sqlite_uri, tmp_path / "engine", monkeypatch)
    home = {"NGRAPH_HOME": str(tmp_path / "home"), "MLFLOW_TRACKING_URI": sqlite_uri}
    # What is measured besides is of no interest here.
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_ngraph", *command[1:], "--repetitions", "2"],
        env={**os.environ, **home}, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    # Where others use the machine too, cells may be noisy; their engines are built all the same.
    assert done.returncode in (0, 3), done.stderr[-3000:]
    client = MlflowClient(sqlite_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query = f"tags.`{Tag.COMPILER}` = 'onnxruntime' AND tags.`{Tag.STUDY}` = 'adhoc'"
    (model,) = client.search_logged_models(experiments, query)
    pulled = pull_engine(f"models:/{model.model_id}", tmp_path / "engine", tracking_uri=sqlite_uri)
    spec = pulled.package.manifest.spec
    assert (spec.compiler, spec.batch_sizes, spec.target.precision) == ("onnxruntime", BATCHES, "fp32")
    assert spec.workload.partition("?")[0] == workload.partition("?")[0]
    assert spec.asked == open_package(package).manifest.spec.asked
    assert spec.requires.get("isa", isa()) == isa()


def test_a_model_that_is_a_file_has_to_be_here_first(logged: Logged, tmp_path: Path) -> None:
    manifest = open_package(logged.packages["openvino"]).manifest

    def rebuilt(workload: str) -> str:
        spec = manifest.spec.model_copy(update={"workload": workload})
        return compatibility.rebuild(manifest.model_copy(update={"spec": spec}))

    missing = tmp_path / "away.onnx"
    assert rebuilt(f"onnx:{missing}").startswith(f"build it here, once {missing} is here: mlflow-ngraph benchmark ")
    missing.write_bytes(b"")
    assert rebuilt(f"onnx:{missing}?opset=18").startswith("build it here: mlflow-ngraph benchmark --workloads 'onnx:")
    assert "run study 'packages' here" in rebuilt("onnx:a,b.onnx")
