"""What makes two models the same for whoever compiles them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

MODEL = """
import torch
from helper import SLOPE


class Model(torch.nn.Module):
    def __init__(self, slope=SLOPE):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.slope = slope

    def forward(self, x):
        return {forward}


def make(activation="ReLU", slope=0.5):
    return torch.nn.Sequential(Model(slope), getattr(torch.nn, activation)())
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's own code, as if each digest were taken in a new process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helper.py").write_text("SLOPE = 0.5\n")
    write(tmp_path, "self.layer(x) * self.slope")
    return tmp_path


def write(package: Path, forward: str) -> None:
    (package / "mine.py").write_text(MODEL.format(forward=forward))
    for name in ("mine", "helper"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    for cached in package.glob("__pycache__/*"):
        cached.unlink()


def digest(tmp_path: Path, ref: WorkloadRef) -> str:
    number = len(list(tmp_path.glob("materials-*")))
    place = tmp_path / f"materials-{number}"
    return prepare(create(ref, Init()), place, batch_sizes=[], formats=[], seed=0).digest


def factory(**kwargs: object) -> WorkloadRef:
    return WorkloadRef("torch", "mine:make", {"inputs": [{"shape": ["batch", 4]}], "kwargs": kwargs})


def test_the_same_code_and_weights_are_the_same_model(package: Path) -> None:
    assert digest(package, factory()) == digest(package, factory())


@pytest.mark.parametrize("kwargs", [{"activation": "Tanh"}, {"slope": 0.25}], ids=str)
def test_a_module_or_a_setting_without_weights_is_another_model(package: Path, kwargs: dict[str, object]) -> None:
    assert digest(package, factory(**kwargs)) != digest(package, factory())


def test_another_forward_with_the_same_weights_is_another_model(package: Path) -> None:
    before = digest(package, factory())
    write(package, "self.layer(x) + self.slope")
    assert digest(package, factory()) != before
    write(package, "self.layer(x) * self.slope")
    assert digest(package, factory()) == before


def onnx_file(path: Path, operator: str, bias: float = 1.0) -> WorkloadRef:
    path.parent.mkdir(exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node(operator, ["s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor("b", TensorProto.FLOAT, [1], [bias])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return WorkloadRef.parse(f"onnx:{path}")


def test_a_file_is_its_content_wherever_it_lies(tmp_path: Path) -> None:
    one, other = onnx_file(tmp_path / "a" / "m.onnx", "Relu"), onnx_file(tmp_path / "b" / "m.onnx", "Relu")
    before = digest(tmp_path, one)
    assert digest(tmp_path, other) == before
    assert digest(tmp_path, onnx_file(tmp_path / "a" / "m.onnx", "Sigmoid")) != before, "an operator"
    assert digest(tmp_path, onnx_file(tmp_path / "a" / "m.onnx", "Relu", 2.0)) != before, "a weight"
    assert digest(tmp_path, onnx_file(tmp_path / "a" / "m.onnx", "Relu")) == before


def test_what_a_killed_attempt_left_behind_does_not_count(tmp_path: Path) -> None:
    ref = onnx_file(tmp_path / "a" / "m.onnx", "Relu")
    before = digest(tmp_path, ref)
    place = tmp_path / "materials-1"
    place.mkdir()
    (place / "weights.tmp").write_bytes(b"half")
    assert prepare(create(ref, Init()), place, batch_sizes=[], formats=[], seed=0).digest == before
