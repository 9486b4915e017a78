"""``results bisect``, from a study to the folder for the compiler's authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from tests.cli.test_verbs import documented


def _write(path: Path, slope: float = 0.1) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], "softmax", axis=-1),
        helper.make_node("LeakyRelu", ["x"], ["l"], "leaky", alpha=slope),
        helper.make_node("Mul", ["s", "l"], ["y"], "product"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "gated", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


@pytest.fixture(scope="module")
def studied(miscompiler: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and the home of a study of it."""
    folder = tmp_path_factory.mktemp("studied")
    _write(folder / "gated.onnx")
    compilers: list[Any] = ["onnxruntime", {"name": "miscompiler", "flags": {"operator": "LeakyRelu"}}]
    study = {"name": "wrong", "device": "host", "workloads": [f"onnx:{folder}/gated.onnx"], "compilers": compilers}
    run_study(parse({**study, "batch_sizes": [2], "repetitions": 1}), home=folder / "home", offline=True)
    return folder


@pytest.fixture
def home(studied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGRAPH_HOME", str(studied / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return studied / "home"


@pytest.mark.slow
def test_the_first_wrong_operator(home: Path, tmp_path: Path, cli) -> None:
    code, out, _ = cli("results", "bisect", "gated/miscompiler/b2", "--into", "sent")
    assert code == 0, out
    lines = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert lines["first wrong"].strip() == "LeakyRelu, node leaky"
    assert lines["smallest model"].strip() == "this node alone, of 3 nodes"
    assert [node.name for node in onnx.load(str(tmp_path / "sent/model.onnx")).graph.node] == ["leaky"]
    with np.load(tmp_path / "sent/data.npz") as data:
        assert set(data.files) == {"input_0", "engine_0", "reference_0"}
        right = np.where(data["input_0"] < 0, 0.1, 1.0) * data["input_0"]
        np.testing.assert_allclose(data["reference_0"], right, rtol=1e-6)
        np.testing.assert_allclose(data["engine_0"], 1.01 * right, rtol=1e-5)
    assert not (tmp_path / "sent/repro.py").exists(), "there is no script for a compiler of another package"
    code, _, err = cli("results", "bisect", "gated/miscompiler/b2", "--into", "sent")
    assert (code, err.count("\n")) == (2, 1)
    assert "is there already: name a new folder with --into" in err


@pytest.mark.slow
def test_a_right_engine(home: Path, tmp_path: Path, cli_json) -> None:
    said = cli_json("results", "bisect", "gated/onnxruntime/b2")
    assert set(said) == documented("results bisect")
    assert said["right"].startswith("its outputs are as near to float64 as rounding allows")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_another_model_than_the_one_that_was_measured(home: Path, studied: Path, cli) -> None:
    _write(studied / "gated.onnx", slope=0.2)
    try:
        code, out, err = cli("results", "bisect", "gated/miscompiler/b2")
    finally:
        _write(studied / "gated.onnx")
    assert (code, out) == (1, "")
    assert "gated is not what was measured" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gated/*/b2"], "gated/*/b2 means 3 cells: name one"),
        (["gated/miscompiler/b2", "--into", "."], "is there already: name a new folder with --into"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, home: Path, cli) -> None:
    code, out, err = cli("results", "bisect", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
