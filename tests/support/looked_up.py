"""An engine that looks rows up in a table, and fails on numbers of rows that the table does not have."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from mlflow import MlflowClient
from onnx import TensorProto, helper, numpy_helper

from mlflow_ngraph import runner
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import connection, download

ROWS = 8


def look_up(directory: Path) -> Path:
    """A package of ONNX Runtime: ``ids`` of shape (batch, 1) to rows of shape (batch, 1, 3), all equal to the id."""
    table = np.repeat(np.arange(ROWS, dtype=np.float32)[:, None], 3, axis=1)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["row"], "look_up", axis=0)],
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, ["batch", 1, 3])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(directory / "table.onnx"))
    uri = f"sqlite:///{directory / 'mlflow.db'}"
    study = parse(
        {
            "name": "table",
            "workloads": [f"onnx:{directory / 'table.onnx'}?high={ROWS}"],
            "compilers": ["onnxruntime"],
            "batch_sizes": [1, 4],
            "repetitions": 4,
            "threads": 1,
            "warmup": {"window": 2, "max_seconds": 0.2},
            "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9},
        }
    )
    home = directory / "home"
    client = connection.connect(uri)
    client.create_experiment("table", artifact_location=str(directory / "artifacts"))
    outcome = runner.run_study(study, home=home, tracking_uri=uri, experiment="table")
    assert outcome.exit_code == 0, outcome.record.lanes
    found = MlflowClient(uri).search_logged_models([client.get_experiment_by_name("table").experiment_id])
    (remote,) = [download.of_model(one, uri) for one in found if one.tags["ngraph.compiler"] == "onnxruntime"]
    download.pull(remote, directory / "package")
    shutil.rmtree(home)
    return directory / "package"
