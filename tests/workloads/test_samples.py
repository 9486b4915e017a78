"""Inputs that users give in place of random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, Workload, WorkloadRef
from mlflow_ngraph.workloads.describe import describe
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
SHAPE = np.array([2, -1], np.int64)


@pytest.fixture
def reshaping(tmp_path: Path) -> Path:
    """A model that no random input suits: one of them is a shape."""
    value = helper.make_tensor_value_info
    inputs = [
        value("rows/left: é", TensorProto.FLOAT, ["batch", 2]),
        value("offset", TensorProto.FLOAT, ["batch", 2]),
        value("shape", TensorProto.INT64, [2]),
    ]
    nodes = [
        helper.make_node("Add", ["rows/left: é", "offset"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["result"]),
    ]
    content = helper.make_graph(nodes, "graph", inputs, [value("result", TensorProto.FLOAT, [None, None])])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(content, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def saved(path: Path, **changed: Any) -> Path:
    arrays: dict[str, Any] = {"rows/left: é": ROWS, "offset": ROWS * 10, "shape": SHAPE} | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def workload(scheme: str, target: object, **options: Any) -> Workload:
    return create(WorkloadRef(scheme, str(target), options), Init())


def test_samples_take_the_place_of_random_inputs(reshaping: Path, tmp_path: Path) -> None:
    found = workload("onnx", reshaping, samples=str(saved(tmp_path / "real.npz")))
    assert WorkloadRef.parse(str(found.ref)) == found.ref
    found.check()
    assert describe(found).parameters == 0
    prepare(found, tmp_path / "m", batch_sizes=[2], formats=["module", "onnx"], seed=0)
    (tmp_path / "real.npz").unlink()
    prepare(found, tmp_path / "m", batch_sizes=[4], formats=["module", "onnx"], seed=0)
    source = Source(tmp_path / "m")
    assert [array.tolist() for array in source.example(2)] == [ROWS[:2].tolist(), (ROWS[:2] * 10).tolist(), [2, -1]]
    assert source.example(4)[0].tolist() == [*ROWS.tolist(), ROWS[0].tolist()]
    assert source.reference(2)[0].tolist() == (ROWS[:2] * 11).tolist()


def test_samples_belong_to_what_is_prepared(reshaping: Path, tmp_path: Path) -> None:
    def digest(name: str, **changed: Any) -> str:
        found = workload("onnx", reshaping, samples=str(saved(tmp_path / f"{name}.npz", **changed)))
        return prepare(found, tmp_path / name, batch_sizes=[], formats=[], seed=0).digest

    assert digest("first") == digest("again")
    assert digest("other", offset=ROWS) != digest("first")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": None}, "has 'offset', 'rows/left: é', the model takes 'rows/left: é', 'offset', 'shape': save one"),
        ({"more": ROWS}, "has 'more', 'offset'"),
        ({"offset": ROWS.astype(np.float64)}, "'offset' is float64, the model takes float32"),
        ({"offset": ROWS[:, :1]}, r"'offset' has shape \[3, 1\], the model takes \[batch, 2\]"),
        ({"offset": ROWS[:0]}, r"'offset' has shape \[0, 2\], the model takes \[batch, 2\]"),
        ({"shape": SHAPE[:1]}, r"'shape' has shape \[1\], the model takes \[2\]"),
        ({"offset": ROWS[:2]}, "has 3 of 'rows/left: é', 2 of 'offset': give as many samples of each input"),
        ({"offset": np.array(["a", None], object)}, "is no .npz file of plain arrays"),
    ],
)
def test_samples_that_do_not_suit(reshaping: Path, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    found = workload("onnx", reshaping, samples=str(saved(tmp_path / "real.npz", **changed)))
    with pytest.raises(WorkloadError, match=message) as caught:
        found.check()
    assert "real.npz" in str(caught.value)


def test_files_that_hold_no_samples(reshaping: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", ROWS)
    for name, message in (("none.npz", "no such file"), ("one.npy", "is no .npz file"), ("net.onnx", "is no .npz")):
        with pytest.raises(WorkloadError, match=message):
            workload("onnx", reshaping, samples=str(tmp_path / name)).check()


def test_samples_for_exported_programs_and_torch_factories(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(3, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    np.savez(tmp_path / "exported.npz", input=ROWS)
    np.savez(tmp_path / "factory.npz", values=np.tile(ROWS, (1, 2)))
    inputs = [{"name": "values", "shape": ["batch", 4]}]
    for found in (
        workload("pt2", tmp_path / "net.pt2", samples=str(tmp_path / "exported.npz")),
        workload(
            "torch",
            "torch.nn:Linear",
            inputs=inputs,
            kwargs={"in_features": 4, "out_features": 1},
            samples=str(tmp_path / "factory.npz"),
            calibrate=True,
        ),
    ):
        found.check()
        directory = tmp_path / found.ref.scheme
        prepare(found, directory, batch_sizes=[3], formats=["module"], seed=0)
        assert Source(directory).example(3)[0][:, :2].tolist() == ROWS.tolist()
