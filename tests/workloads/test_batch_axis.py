"""The batch axis is the one that is called so, or named; where there is none it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, TensorSpec, Workload, WorkloadRef, batch_question, fixed_batch
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph.workloads.trials import KINDS, draw


def workload(scheme: str, target: object, **options: Any) -> Workload:
    return create(WorkloadRef(scheme, str(target), options), Init())


def file(path: Path, **shapes: list[Any]) -> Path:
    """A file that takes these inputs and gives them back."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("Neg", [name], [f"{name}_out"]) for name in shapes]
    content = helper.make_graph(nodes, "test", values, outputs)
    onnx.save(helper.make_model(content, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


class TimeFirst(nn.Module):
    """A recurrent layer that has the batch on axis 1, and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 3)

    def forward(self, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, state = self.layer(steps)
        return values, state


@pytest.mark.parametrize(
    ("shapes", "options", "found"),
    [
        (
            {"x": ["steps", "batch_size", 4], "state": [1, "batch_size", 3]},
            {"dims": {"steps": 5}},
            [(5, "batch", 4), (1, "batch", 3)],
        ),
        ({"x": ["N", "M"]}, {"dims": {"M": 4}}, [("batch", 4)]),
        (
            {"x": ["A", "B", 4], "state": [1, "B", 3]},
            {"dims": {"A": 5}, "batch_axis": 1},
            [(5, "batch", 4), (1, "batch", 3)],
        ),
        ({"x": ["A", "B"], "y": [2, "B"]}, {"dims": {"A": 5}, "batch_axis": {"x": 1}}, [(5, "batch"), (2, "batch")]),
        ({"x": ["seq", 4]}, {"dims": {"seq": 5}, "batch_axis": "none"}, [(5, 4)]),
        ({"x": ["seq", 4]}, {"batch_axis": 0}, [("batch", 4)]),
        ({"tokens": [None, 4]}, {}, [("batch", 4)]),
    ],
)
def test_an_open_axis_is_the_batch_axis_by_its_name_or_by_the_users_word(
    tmp_path: Path, shapes: dict[str, list[Any]], options: dict[str, Any], found: list[Any]
) -> None:
    inputs = workload("onnx", file(tmp_path / "net.onnx", **shapes), **options).inputs()
    assert [spec.shape for spec in inputs] == found


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ({"x": ["seq", 4]}, {}, "dims: {seq: 16}; no batch axis found: name one, such as batch_axis: 0"),
        ({"x": [2, 4]}, {"batch_axis": {"y": 0}}, "batch_axis: unknown 'y': known: x"),
        ({"x": [2, 4]}, {"batch_axis": 2}, "batch_axis: no such axis: counted from 0, x has 2"),
        ({"x": [2, 4]}, {"batch_axis": "last"}, "batch_axis"),
    ],
)
def test_an_axis_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, shapes: dict[str, list[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload("onnx", file(tmp_path / "net.onnx", **shapes), **options).inputs()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "named", "only"),
    [
        ([(4, 3, 8, 8), (4, 2)], None, 4),
        ([(4, 3, 8, 8), (5,)], None, 4),
        ([(20, 2, 8)], 1, 2),
        ([(20, 2, 8), (2, 8)], {"input_0": 1, "input_1": 0}, 2),
        ([(20, 2, 8)], "none", 1),
        ([("batch", 4), (3, 4)], None, None),
    ],
)
def test_sizes_that_agree_are_the_batch_size(shapes: list[Any], named: Any, only: int | None) -> None:
    inputs = tuple(TensorSpec(f"input_{place}", "float32", shape) for place, shape in enumerate(shapes))
    assert fixed_batch(inputs, named) == only
    assert not batch_question(inputs, named)


@pytest.mark.parametrize("shapes", [[(1, 512), (2, 1, 128)], [(16000,)], [()]])
def test_sizes_that_do_not_agree_leave_batch_size_one_and_a_question(shapes: list[Any]) -> None:
    inputs = tuple(TensorSpec(f"input_{place}", "float32", shape) for place, shape in enumerate(shapes))
    assert fixed_batch(inputs) == 1
    question = batch_question(inputs)
    assert question.startswith("no batch axis found in input_0[")
    assert question.endswith(": name one, such as batch_axis: 1, or measure batch size 1 only")
    assert not batch_question(inputs, "none")


@pytest.mark.usefixtures("compilers")
@pytest.mark.filterwarnings("ignore")
def test_a_batch_on_another_axis_is_prepared_cut_and_exported(tmp_path: Path) -> None:
    options = {"inputs": [{"shape": [5, "batch", 4]}]}
    found = workload("torch", f"{__name__}:TimeFirst", **options)
    materials = prepare(found, tmp_path / "torch", batch_sizes=[1, 3], formats=["exported", "onnx"], seed=0)
    assert [spec.shape for spec in materials.outputs] == [(5, "batch", 3), (1, "batch", 3)]
    assert not materials.behaviour.mixes
    source = Source(tmp_path / "torch")
    assert source.dynamic("exported")
    again = workload("onnx", source.onnx())
    assert again.inputs()[0].shape == (5, "batch", 4)
    prepare(again, tmp_path / "onnx", batch_sizes=[3], formats=["onnx"], seed=0)
    for own, other in zip(source.reference(3), Source(tmp_path / "onnx").reference(3), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("compilers")
def test_a_time_axis_that_is_taken_for_the_batch_is_told(tmp_path: Path) -> None:
    found = workload("torch", f"{__name__}:TimeFirst", inputs=[{"shape": ["batch", 2, 4]}])
    materials = prepare(found, tmp_path, batch_sizes=[3], formats=[], seed=0)
    assert materials.behaviour.mixes == "output 1 is one for the whole batch of 3"


def test_every_sample_has_its_own_scale_on_whatever_axis_it_lies() -> None:
    first, second = (TensorSpec("x", "float32", shape) for shape in (("batch", 5, 2), (5, "batch", 2)))
    example = np.ones((3, 5, 2), np.float32)
    for number in range(len(KINDS)):
        own = draw([first], 3, 0, number, [example])[1][0]
        moved = draw([second], 3, 0, number, [example.swapaxes(0, 1)])[1][0]
        np.testing.assert_array_equal(own, moved.swapaxes(0, 1))
        assert moved.flags.c_contiguous
