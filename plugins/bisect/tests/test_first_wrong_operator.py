"""The search for the first wrong operator, with compilers that are wrong on purpose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_ngraph_testing.steps import within

pytestmark = pytest.mark.slow
SECONDS = 120.0
TARGET = {
    "precision": "fp32",
    "mode": "sync",
    "threads": 1,
    "accelerator": "cpu",
    "transfers": "outside",
    "build_for": "",
}


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    operators: list[str]
    """Of the smallest model."""
    first: str
    """The node whose output is wrong."""
    nodes: int
    """Of the whole model."""
    tries: int
    script: str = ""
    """What the script said that was written."""
    doubt: str = ""


def _searched(program: Any, compiler: str, flags: Mapping[str, Any], place: Path, *, named: str = "") -> Found | None:
    from mlflow_ngraph_bisect import reproduction
    from mlflow_ngraph_bisect.engines import Engines, Job
    from mlflow_ngraph_bisect.search import Search

    with Engines(program, Job(compiler, flags, TARGET, 60.0), place / "engines") as engines:
        search = Search(program, engines.run)
        whole = search.whole()
        if whole is None:
            return None
        smallest = search.smallest(whole)
    operators = [program.nodes[index].operator for index in smallest.part.nodes]
    first = program.nodes[program.producers()[smallest.culprit]].name
    said = ""
    if named:
        reproduction.write(program, smallest, place / "written", named, {}, "fp32", "it is wrong")
        ended = subprocess.run(
            [sys.executable, "repro.py"], cwd=place / "written", capture_output=True, text=True, check=False
        )
        said = ended.stdout + ended.stderr
    doubt = program.recheck(smallest.part, smallest.outputs, "fp32")
    return Found(operators, first, len(program.nodes), search.tries, said, doubt)


def _convolutions(count: int = 4) -> Any:
    """A model of convolutions, each with a branch around it; nodes are called after what they do and where they are."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from mlflow_ngraph_bisect.onnx_program import OnnxProgram

    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for index in range(count):
        weight = (rng.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        steps = [
            ("Conv", [value, f"w{index}"], {"pads": [1, 1, 1, 1]}),
            ("Add", [f"conv{index}", value], {}),
            ("Relu", [f"add{index}"], {}),
        ]
        for operator, inputs, attributes in steps:
            name = f"{operator.lower()}{index}"
            nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        value = f"relu{index}"
    nodes.append(helper.make_node("Softmax", [value], ["y"], "softmax", axis=1))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4, 6, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "convolutions", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return OnnxProgram(model, {"x": rng.standard_normal((2, 4, 6, 6)).astype(np.float32)})


def _planted(flags: Mapping[str, Any], place: Path, count: int = 4) -> Found | None:
    return _searched(_convolutions(count), "miscompiler", flags, place)


@pytest.mark.parametrize(
    ("operator", "first"), [("Conv", "conv0"), ("Add", "add0"), ("Relu", "relu0"), ("Softmax", "softmax")]
)
def test_an_operator_that_is_always_wrong(
    operator: str, first: str, processes: None, miscompiler: None, tmp_path: Path
) -> None:
    found = within(SECONDS, _planted, {"operator": operator}, tmp_path)
    assert found is not None
    assert (found.operators, found.first, found.nodes, found.tries) == ([operator], first, 13, 3)


@pytest.mark.parametrize(("operator", "after", "first"), [("Relu", "Add", "relu0"), ("Softmax", "Relu", "softmax")])
def test_an_operator_that_is_wrong_where_it_is_fused(
    operator: str, after: str, first: str, processes: None, miscompiler: None, tmp_path: Path
) -> None:
    found = within(SECONDS, _planted, {"operator": operator, "after": after}, tmp_path)
    assert found is not None
    assert (found.operators, found.first) == ([after, operator], first)


def test_what_follows_a_wrong_fusion_is_left_out(processes: None, miscompiler: None, tmp_path: Path) -> None:
    found = within(SECONDS, _planted, {"operator": "Conv", "after": "Relu"}, tmp_path, 2)
    assert found is not None
    assert (found.operators, found.first) == (["Relu", "Conv"], "conv1"), (
        "they are in the middle, of which no half is wrong"
    )


def test_an_operator_that_is_wrong_where_nobody_sees_its_output(
    processes: None, miscompiler: None, tmp_path: Path
) -> None:
    found = within(SECONDS, _planted, {"operator": "Add", "inside": True}, tmp_path)
    assert found is not None
    assert (found.operators, found.first) == (["Add", "Relu"], "add0")


def test_parts_that_crash_the_compiler_are_passed_over(processes: None, miscompiler: None, tmp_path: Path) -> None:
    found = within(SECONDS, _planted, {"operator": "Relu", "after": "Add", "crashes_at": 6}, tmp_path)
    assert found is not None
    assert found.operators == ["Add", "Relu"]


def test_a_right_engine(processes: None, miscompiler: None, tmp_path: Path) -> None:
    assert within(SECONDS, _planted, {"operator": "Tan"}, tmp_path) is None


def _remainder(compiler: str, place: Path) -> Found | None:
    """Ids beyond 32 bits, as hashes are."""
    from onnx import TensorProto, helper, numpy_helper

    from mlflow_ngraph_bisect.onnx_program import OnnxProgram

    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(np.int64(97), "size"),
        numpy_helper.from_array(rng.standard_normal((97, 8)).astype(np.float32), "table"),
    ]
    nodes = [
        helper.make_node("Mod", ["ids", "size"], ["rest"], "remainder"),
        helper.make_node("Gather", ["table", "rest"], ["rows"]),
        helper.make_node("ReduceSum", ["rows"], ["y"], keepdims=0),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "ids", [ids], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    program = OnnxProgram(model, {"ids": rng.integers(2**40, 2**41, 12)}, compiler)
    return _searched(program, compiler, {}, place, named=compiler)


def test_a_real_miscompilation_of_openvino(processes: None, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    found = within(SECONDS, _remainder, "openvino", tmp_path)
    assert found is not None
    assert (found.operators, found.first, found.doubt) == (["Mod"], "remainder", "")
    assert "right:" in found.script
    assert "largest difference" in found.script


def test_a_compiler_that_has_it_right(processes: None, tmp_path: Path) -> None:
    assert within(SECONDS, _remainder, "onnxruntime", tmp_path) is None


def _clipped(compiler: str, flags: Mapping[str, Any], place: Path) -> Found | None:
    import torch

    from mlflow_ngraph_bisect.torch_program import TorchProgram

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5), torch.nn.Tanh()]
    images = 5 * np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    program = TorchProgram(torch.nn.Sequential(*layers).eval(), [images])
    return _searched(program, compiler, flags, place, named="torchscript")


def test_a_pytorch_operator(processes: None, broken_compiler: None, tmp_path: Path) -> None:
    found = within(SECONDS, _clipped, "broken", {"damage": "clipped", "limit": 0.5}, tmp_path)
    assert found is not None
    assert (found.operators, found.first) == (["relu.default"], "relu")
    assert "largest difference: 0.0" in found.script  # TorchScript itself has it right


def _disputed(place: Path) -> str:
    """A truth that only the runtime's kernels tell, and an engine that is as the standard says."""
    from mlflow_ngraph_bisect.onnx_nodes import EVALUATOR

    program = _convolutions(1)
    part = program.part([2], ["relu0"])
    program.exact(part)
    right = program.rounded(part)
    assert not program.recheck(part, [right[0] + 1], "fp32"), "an engine that nobody agrees with raises no doubt"
    said = str(program.recheck(part, right, "fp32"))
    program.exact(part)
    assert program.computed_by(2) == EVALUATOR
    return said


def test_where_the_standard_agrees_with_the_engine_the_truth_is_doubted(processes: None, tmp_path: Path) -> None:
    assert "the engine agrees with ONNX's reference evaluator" in within(SECONDS, _disputed, tmp_path)
