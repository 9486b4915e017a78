"""What a study needs is said before it begins, and what a disk cannot hold is not begun."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph import runner
from mlflow_ngraph.devices.registry import create
from mlflow_ngraph.errors import DiskFullError
from mlflow_ngraph.execute import plan
from mlflow_ngraph.execute.process_pool import expected_bytes
from mlflow_ngraph.execute.timing_history import TimingHistory
from mlflow_ngraph.processes import disk_space
from mlflow_ngraph.study import Study
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.registry import create as create_workload

GB = 10**9
Usage = namedtuple("Usage", "total used free")


def planned(history: TimingHistory | None = None, file_bytes: int | None = 2 * GB, **changes: Any) -> plan.StudyPlan:
    """A study of a model of 2 GB from a file, as a child process finds it."""
    study = Study(workloads=["onnx:large.onnx"], compilers=["identity", "onnxruntime", "openvino"], **changes)
    found = {"label": "large", "family": "onnx", "fixed_batch": None, "file_bytes": file_bytes}
    return plan.make(study, create("host"), history).with_checked({"onnx:large.onnx": found})


def test_disk_follows_from_the_size_of_the_models_files() -> None:
    """The baseline has the file beside its weights, and shares both with what is prepared."""
    needs = planned(batch_sizes=[1])
    assert needs.engine_bytes == 4 * 2 * GB
    assert needs.home_bytes == needs.engine_bytes
    assert needs.workloads[0].parameters == GB // 2
    assert expected_bytes(needs.workloads[0].parameters) > 3 * 2 * GB


def test_engines_that_are_kept_here_take_no_more_room() -> None:
    known = TimingHistory()
    for compiler in ("identity", "onnxruntime", "openvino"):
        known.kept("onnx:large.onnx", compiler, "fp32")
    assert planned(known, batch_sizes=[1]).home_bytes == plan.PREPARED_COPIES * 2 * GB
    assert planned(known, batch_sizes=[1], cache="off").home_bytes == planned(batch_sizes=[1]).home_bytes


def test_of_what_nobody_knows_nothing_is_refused() -> None:
    needs = planned(file_bytes=None, batch_sizes=[1])
    assert needs.home_bytes > 0
    assert needs.of_known_size.home_bytes == 0


@pytest.mark.parametrize("kept", ["inside", "beside"])
def test_the_size_of_an_onnx_file_counts_its_weights_wherever_they_are(kept: str, tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 256]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=kept == "beside", location="model.data")
    size = create_workload(WorkloadRef("onnx", str(path)), Init()).file_bytes()
    assert size == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size > 4 * 256 * 256


@pytest.mark.usefixtures("processes")
def test_a_disk_that_cannot_hold_a_study_is_told_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where artifacts go to the same disk, they count as well."""
    needs = planned(batch_sizes=[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "plan_study", lambda study, home: needs)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(20 * GB, 7 * GB, 13 * GB))
    refused = rf"needs about 16\.0 GB in {tmp_path}, and 13\.0 GB are free there: free some room"
    with pytest.raises(DiskFullError, match=refused):
        runner.run_study(needs.study, home=tmp_path, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert not list((tmp_path / "studies").glob("*"))
    disk_space.require(needs.home_bytes, tmp_path)  # without artifacts it fits
