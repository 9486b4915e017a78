from __future__ import annotations

import importlib.metadata
import platform

import pytest

from mlflow_ngraph.compilers import host
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph_tvm.adapter import TVM

BUILT_IN = ["identity", "torchscript", "torch-compile", "onnxruntime", "openvino", "tensorrt", "tensorrt-rtx", "tvm"]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_missing_package_is_named_with_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_spec", lambda module: None)
    found = COMPILERS.get(name).availability()
    assert not found.available
    assert found.version is None
    assert "is not installed" in found.reason
    assert found.hint.startswith("pip install ")


@pytest.mark.parametrize("name", ["torch-compile", "tvm"])
def test_a_missing_cpp_compiler_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = COMPILERS.get(name).availability()
    assert not found.available
    assert found.version
    assert "no C++ compiler" in found.reason
    assert "g++" in found.hint


def test_a_package_under_another_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "bringing", lambda module: ["numpy"])
    found = host.package("onnxruntime", "no-such-distribution", "pip install it")
    assert found.available
    assert found.version == importlib.metadata.version("numpy")


def test_a_module_without_a_distribution_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "bringing", lambda module: [])
    assert not host.package("json", "no-such-distribution", "pip install it").available


def test_tvm_says_when_its_tuning_would_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_ngraph_tvm.adapter.version", lambda name: "9.9")
    found = TVM.availability()
    assert found.available
    assert "apache-tvm-ffi==" in found.hint
    assert "9.9" in found.hint


def test_the_instruction_set_names_the_architecture() -> None:
    assert host.isa().split()[0] == platform.machine()


def test_who_brings_a_module_is_what_the_library_says() -> None:
    known = importlib.metadata.packages_distributions()
    for module in ("numpy", "yaml", "mlflow", "click", "packaging", "pytest", "no_such_module"):
        assert host.bringing(module) == known.get(module, [])
