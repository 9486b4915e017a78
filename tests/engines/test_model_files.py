"""What MLflow would run of a package follows from its manifest, or the package is refused."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_ngraph import load_model
from mlflow_ngraph.engines import model_files
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.package import open_package, read_manifest
from mlflow_ngraph.errors import EngineError
from tests.support.logged import Logged
from tests.support.published import rewrite


def manifest_of(package: Path) -> Manifest:
    return read_manifest(package).manifest


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


def test_requirements_are_those_that_were_packaged_or_that_pull_writes(logged: Logged, tmp_path: Path) -> None:
    """Also where conda.yaml lists the same: the digests of both are in the manifest."""
    package = logged.copy("openvino", tmp_path / "package")
    before = {name: (package / name).read_text() for name in ("requirements.txt", "conda.yaml")}

    def require(old: str, new: str) -> None:
        for name, text in before.items():
            assert old in text
            (package / name).write_text(text.replace(old, new))

    version = manifest_of(package).spec.packages["openvino"]
    require("mlflow==", "mlflow==1")  # another pull's MLflow
    open_package(package)
    for old, new, said in (
        (f"openvino=={version}", f"openvino=={version}.post1", f"'openvino=={version}.post1' is not in the manifest"),
        (f"openvino=={version}", "openvin==1", "'openvin==1' is not in the manifest"),
        (f"openvino=={version}", "mlflow==1", f"'openvino=={version}' lacks"),
    ):
        require(old, new)
        refused(package, said)
    for name, text in before.items():
        (package / name).write_text(text)
    (package / "requirements.txt").unlink()
    refused(package, "requirements.txt is missing: MLmodel needs it")


def test_a_wheel_is_the_packaged_one_or_that_of_this_installation(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    manifest = manifest_of(package)
    (wheel,) = (package / "wheels").iterdir()
    assert model_files.summary(package, manifest)[0]
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}

    def write(name: str, **changed: bytes) -> None:
        wheel.unlink(missing_ok=True)
        with zipfile.ZipFile(wheel.with_name(name), "w") as archive:
            for path, content in (files | changed).items():
                archive.writestr(path, content)

    write(wheel.name)  # not compressed: other bytes, equal files
    open_package(package)
    assert model_files.summary(package, manifest) == (
        True,
        "MLmodel, requirements.txt and wheels are what was packaged, or what pull writes",
    )
    write(wheel.name, **{"mlflow_ngraph/__init__.py": b"evil"})
    refused(package, "has changed since it was packaged")
    other = wheel.name.replace("-py3", "0-py3")
    write(other, **{"mlflow_ngraph/__init__.py": b"evil"})
    for name in ("requirements.txt", "conda.yaml"):
        (package / name).write_text((package / name).read_text().replace(wheel.name, other))
    open_package(package)
    known, said = model_files.summary(package, manifest)
    assert not known
    assert f"wheels/{other}, which MLflow installs, is neither the packaged wheel nor" in said


def test_a_manifest_lists_no_file_that_the_format_does_not_know(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "code").mkdir()
    (package / "code" / "evil.py").write_text("")
    rewrite(package, lambda manifest: manifest["files"].update({"code/evil.py": sha256(package / "code/evil.py")}))
    refused(package, "'code/evil.py' is neither of an engine nor of a model of MLflow")
