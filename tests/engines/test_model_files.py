"""What MLflow would run of a package follows from its manifest, or the package is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_ngraph import load_model
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import EngineError
from tests.support.logged import Logged
from tests.support.published import rewrite


def refused(package: Path, said: str) -> str:
    with pytest.raises(EngineError) as error:
        open_package(package)
    assert said in str(error.value)
    with pytest.raises(EngineError):
        load_model(package)
    return str(error.value)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_mlflow_adds_is_a_file_of_the_package(
    logged: Logged, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    make(package / "registered_model_meta")
    refused(package, "registered_model_meta is ")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("MLmodel", "mlflow_ngraph.release.flavor", "evil", "flavors: python_function: loader_module: 'evil', not"),
        ("MLmodel", "    env:", "    code: code\n    env:", "'code' is unknown"),
        ("MLmodel", "    env:", "    data: data\n    env:", "'data' is unknown"),
        ("MLmodel", "    env:", "    config: {run: true}\n    env:", "'config' is unknown"),
        ("MLmodel", "flavors:\n", "flavors:\n  sklearn: {pickled_model: x}\n", "'sklearn' is unknown"),
        ("MLmodel", "    code: null", "    code: evil", "code: 'evil', not None"),
        ("MLmodel", "batch_sizes:", "batch_size:", "'batch_size' is unknown"),
        ("MLmodel", "prompts: null", "auth_policy: {x: y}", "'auth_policy' is unknown"),
        ("MLmodel", '"shape": [-1, ', '"shape": [3, ', "signature: inputs: "),
        ("MLmodel", "signature:", "signature: null\nformer:", "'former' is unknown"),
        ("MLmodel", "flavors:", "- flavors:", "not readable"),
        ("requirements.txt", "mlflow==", "--index-url http://127.0.0.1:9/\nmlflow==", "'--index-url http://127.0.0.1:9/'"),
        ("requirements.txt", "mlflow==", "evil @ https://127.0.0.1:9/e.whl\nmlflow==", "'evil @ https"),
        ("requirements.txt", "./wheels/mlflow", "./wheels/../../mlflow", "'./wheels/../../mlflow"),
        ("requirements.txt", "mlflow==", "evil==1\nmlflow==", "dependencies: pip: "),
        ("conda.yaml", "- conda-forge", "- evil", "channels: 'evil', not 'conda-forge'"),
        ("conda.yaml", "- pip:", "- evil=1\n- pip:", "dependencies: "),
        ("conda.yaml", "name: ", "variables: {LD_PRELOAD: x}\nname: ", "'variables' is unknown"),
        ("python_env.yaml", "- wheel", "- evil", "build_dependencies: 'evil' is no wheel"),
        ("python_env.yaml", "-r requirements.txt", "-r /tmp/evil.txt", "dependencies: "),
        ("python_env.yaml", "python: ", "python: x", "python: 'x"),
    ],
)  # fmt: skip
def test_what_mlflow_would_run_follows_from_the_manifest(
    logged: Logged, tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    """Also where the manifest has the digest of it."""
    package = logged.copy("openvino", tmp_path / "package")
    text = (package / name).read_text()
    assert old in text
    (package / name).write_text(text.replace(old, new, 1))
    rewrite(package, lambda manifest: manifest["files"].update({name: sha256(package / name)}))
    assert said in refused(package, "is not ")


def test_a_manifest_lists_no_file_that_the_format_does_not_know(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "code").mkdir()
    (package / "code" / "evil.py").write_text("")
    rewrite(package, lambda manifest: manifest["files"].update({"code/evil.py": sha256(package / "code/evil.py")}))
    refused(package, "'code/evil.py' is neither of an engine nor of a model of MLflow")
