from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.explanation import Explanation
from mlflow_ngraph.compilers.onnx_graph import Node, read_nodes, write_nodes
from mlflow_ngraph.compilers.onnxruntime.fusion import BLOCKED, fused
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.errors import NGraphError
from tests.support.installed import needs
from tests.support.onnx_models import residual_block

pytestmark = needs("onnxruntime")

ONE = Target(threads=1)


def explained(directory: Path, **flags: object) -> Explanation:
    (engine := directory / "engine").mkdir()
    compiler = create("onnxruntime", flags)
    source = residual_block(directory)
    compiler.compile(source, [2], ONE, engine, Workbench(directory / "work"))  # type: ignore[arg-type]  # as far as asked
    return compiler.explain(engine, 2, ONE)


def test_all_optimisations_fuse_and_block_the_layout(tmp_path: Path) -> None:
    found = explained(tmp_path)
    assert found.nodes_before == 8
    assert found.nodes_after == len(found.kernels) == 6
    # The blocks are as wide as the machine's vectors, and only some machines have them.
    assert found.count("implementation")["com.microsoft.nchwc"] == 4
    first, second, *_ = found.kernels
    assert (first.operation, first.layout, first.precision) == ("Conv", "NCHWc", "float")
    assert first.fused == ("conv0", "relu0")
    assert second.fused == ("conv1", "add1", "relu1")
    assert found.fused_groups == 2
    assert found.layout_changes == 1
    assert all(kernel.provider == "CPUExecutionProvider" for kernel in found.kernels)
    assert all(kernel.microseconds is not None for kernel in found.kernels)


@pytest.mark.parametrize("save_format", ["onnx", "ort"])
def test_the_extended_level_fuses_in_the_models_own_layout(tmp_path: Path, save_format: str) -> None:
    found = explained(tmp_path, graph_optimization_level="extended", save_format=save_format)
    assert found.count("operation")["FusedConv"] == 1
    (group,) = [kernel.fused for kernel in found.kernels if kernel.fused]
    assert group == ("conv0", "relu0")
    assert found.layout_changes == 0
    assert found.nodes_after == 7


def test_without_optimisation_every_node_is_a_step(tmp_path: Path) -> None:
    found = explained(tmp_path, graph_optimization_level="none")
    assert [kernel.name for kernel in found.kernels] == [
        "conv0", "relu0", "conv1", "add1", "relu1", "pool", "flatten", "classify",
    ]  # fmt: skip
    assert found.fused_groups == 0


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    explained(tmp_path)
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == [
        "model.onnx", "model.weights", "nodes.json", "spec.json",
    ]  # fmt: skip


def node(name: str, operation: str, inputs: str, output: str, domain: str = "") -> Node:
    return Node(name, operation, domain, tuple(inputs.split()), (output,))


def test_a_node_that_moved_into_its_consumer_is_found() -> None:
    source = [
        node("scale", "Mul", "x two", "scaled"),
        node("turn", "Transpose", "y", "turned"),
        node("product", "MatMul", "scaled turned", "out"),
    ]
    steps = [node("product/MatmulTransposeFusion/", "FusedMatMul", "x y", "out", "com.microsoft")]
    assert fused(source, steps) == {"product/MatmulTransposeFusion/": ("scale", "turn", "product")}


def test_what_other_steps_compute_is_not_claimed() -> None:
    source = [node("a", "Exp", "x", "va"), node("b", "Exp", "va", "vb"), node("c", "Exp", "vb", "out")]
    steps = [node("a", "Exp", "x", "va"), node("fused", "Both", "va", "out")]
    assert fused(source, steps) == {"fused": ("b", "c")}


def test_of_two_convolutions_before_a_sum_the_one_that_adds_has_it() -> None:
    source = [
        node("left", "Conv", "x w", "l"),
        node("right", "Conv", "x v", "r"),
        node("sum", "Add", "l r", "s"),
        node("relu", "Relu", "s", "out"),
    ]
    steps = [
        node("r_nchwc", "Conv", "x v0", "new0", BLOCKED),
        Node("l_nchwc", "Conv", BLOCKED, ("x", "w0", "", "new0"), ("new1",)),
        node("ReorderOutput", "ReorderOutput", "new1", "out", BLOCKED),
    ]
    assert fused(source, steps) == {"l_nchwc": ("left", "sum", "relu")}


def test_nodes_make_the_round_trip_and_damage_is_an_error(tmp_path: Path) -> None:
    nodes = [node("a", "Exp", "x", "y"), Node("b", "Clip", "", ("y", "", "z"), ("out",))]
    write_nodes(tmp_path / "nodes.json", nodes)
    assert read_nodes(tmp_path / "nodes.json") == nodes
    (tmp_path / "nodes.json").write_text("[{}")
    with pytest.raises(NGraphError, match=r"nodes\.json"):
        read_nodes(tmp_path / "nodes.json")
