"""What MLflow would run of a package follows from its manifest, or the package is refused."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.models import Model

from mlflow_ngraph import load_model
from mlflow_ngraph.engines import model_files
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import Manifest
from mlflow_ngraph.engines.package import open_package, read_manifest
from mlflow_ngraph.engines.wheel import has_files
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.tracking.model_files import write
from mlflow_ngraph.version import __version__
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


def test_an_engine_that_needs_a_plugin_has_its_wheel(logged: Logged, tmp_path: Path) -> None:
    found = manifest_of(logged.packages["openvino"])
    spec = found.spec.model_copy(update={"packages": {"apache-tvm": "1", "mlflow-ngraph-tvm": __version__}})
    manifest = found.model_copy(update={"spec": spec, "files": {}})
    write(tmp_path, spec, manifest.compiler_version, Model(), size_bytes=1)
    model_files.check(tmp_path, manifest)
    wheels = sorted(path.name for path in (tmp_path / "wheels").iterdir())
    assert [name.partition("-")[0] for name in wheels] == ["mlflow_ngraph", "mlflow_ngraph_tvm"]
    lines = (tmp_path / "requirements.txt").read_text().split()
    assert lines[1:] == [*(f"./wheels/{name}" for name in wheels), "apache-tvm==1"]
    for name in ("requirements.txt", "conda.yaml"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text("".join(line for line in text.splitlines(True) if wheels[1] not in line))
    with pytest.raises(EngineError, match="mlflow_ngraph_tvm-' lacks"):
        model_files.check(tmp_path, manifest)


def test_a_wheel_is_the_packaged_one_or_that_of_this_installation(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    manifest = manifest_of(package)
    (wheel,) = (package / "wheels").iterdir()
    assert model_files.summary(package, manifest)[0]
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: (info, archive.read(info)) for info in archive.infolist()}

    def write(name: str, **changed: bytes) -> None:
        wheel.unlink(missing_ok=True)
        with zipfile.ZipFile(wheel.with_name(name), "w") as archive:
            for path, (info, content) in files.items():
                archive.writestr(info, changed.get(path, content), zipfile.ZIP_STORED)

    said = model_files.summary(package, manifest)[1]
    assert said == "MLmodel, requirements.txt, conda.yaml, python_env.yaml and wheels are what was packaged"
    write(wheel.name)  # not compressed: other bytes, equal files
    open_package(package)
    known, said = model_files.summary(package, manifest)
    assert known
    assert said.endswith("versions of Python, MLflow and build tools, were not compared")
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


def evil() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("evil.pth", "import os")
    return archive.getvalue()


def rewritten(wheel: bytes, attributes: int = 0o644 << 16, comment: bytes = b"", behind: bytes = b"") -> bytes:
    """The same members in another archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as source, zipfile.ZipFile(target, "w") as archive:
        for info in source.infolist():
            info.external_attr = attributes
            archive.writestr(info, source.read(info.filename))
        archive.comment = comment
        target.seek(archive.start_dir)
        target.write(behind)
        archive.start_dir += len(behind)
    return target.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda wheel: b"#!/bin/sh\n" + wheel,
        lambda wheel: evil() + wheel,
        lambda wheel: evil()[: evil().index(b"PK\1\2")] + wheel,
        lambda wheel: wheel + b"x",
        lambda wheel: wheel + evil(),
        lambda wheel: wheel[:-2] + b"\5\0evil!",
        lambda wheel: rewritten(wheel, comment=b"evil"),
        lambda wheel: rewritten(wheel, behind=b"evil"),
        lambda wheel: rewritten(wheel, 0o104777 << 16),
        lambda wheel: rewritten(wheel, 0o120777 << 16),
    ],
)
def test_a_wheel_with_anything_beside_its_files_is_another_one(
    logged: Logged, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (wheel,) = (package / "wheels").iterdir()
    content = wheel.read_bytes()
    assert has_files(rewritten(content), content)
    wheel.write_bytes(change(content))
    refused(package, "has changed since it was packaged")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("MLmodel", "prompts: null", "surprise: null", "'surprise' is unknown"),
        ("MLmodel", "is_signature_from_type_hint: false", "is_signature_from_type_hint: true", "type_hint' is unknown"),
        ("python_env.yaml", "- wheel", "- wheel\n- evil", "build_dependencies: "),
        ("python_env.yaml", "python: ", "python: x", "is no version"),
    ],
)
def test_what_pull_writes_anew_has_no_other_keys(
    logged: Logged, tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    text = (package / name).read_text()
    assert old in text
    (package / name).write_text(text.replace(old, new, 1))
    assert "re.compile" not in refused(package, said)


def test_other_versions_of_build_tools_are_not_said_to_be_packaged(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    path = package / "python_env.yaml"
    path.write_text(re.sub("setuptools==.*", "setuptools==1.0", path.read_text()))
    (package / "requirements.txt").write_bytes((package / "requirements.txt").read_bytes().replace(b"\n", b"\r\n"))
    open_package(package)
    known, said = model_files.summary(package, manifest_of(package))
    assert known
    assert said.endswith("versions of Python, MLflow and build tools, were not compared")


def test_what_else_is_there_was_packaged(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "README.md").write_text("evil")
    refused(package, "README.md is not what mlflow-ngraph writes: it is not the packaged one")
    (package / "README.md").unlink()
    (package / "new" / "empty").mkdir(parents=True)
    refused(package, "is an empty directory, of which the manifest knows nothing")
    (package / "new" / "empty").rmdir()
    (package / "new").rmdir()
    (wheel,) = (package / "wheels").iterdir()
    wheel.unlink()
    refused(package, f"wheels/{wheel.name} is missing")


def test_a_model_that_is_none_any_more_is_said_to_be_none(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "MLmodel").unlink()
    open_package(package)
    known, said = model_files.summary(package, manifest_of(package))
    assert not known
    assert said.startswith("MLmodel is gone, so that it is no model of MLflow any more: pull")


def test_a_manifest_lists_no_file_that_the_format_does_not_know(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "code").mkdir()
    (package / "code" / "evil.py").write_text("")
    rewrite(package, lambda manifest: manifest["files"].update({"code/evil.py": sha256(package / "code/evil.py")}))
    refused(package, "'code/evil.py' is neither of an engine nor of a model of MLflow")
