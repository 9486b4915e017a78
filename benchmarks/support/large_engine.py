"""An engine of 200 MB on a tracking server."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIZE_MB, WIDTH = 200, 4096


def model(path: Path) -> None:
    """Matrix products whose weights take about `SIZE_MB`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    layers = max(1, round(SIZE_MB * 1e6 / (4 * WIDTH * WIDTH)))
    nodes, weights, name = [], [], "input"
    for layer in range(layers):
        scale = np.float32(1 / np.sqrt(WIDTH))
        weights.append(
            numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH), np.float32) * scale, f"weight_{layer}")
        )
        nodes.append(helper.make_node("MatMul", [name, f"weight_{layer}"], [f"output_{layer}"]))
        name = f"output_{layer}"
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(made)
    onnx.save(made, path)


def logged(home: Path, uri: str) -> str:
    """The URI of the engine, measured by a study and logged to the server at ``uri``."""
    from mlflow import MlflowClient

    from mlflow_ngraph import run_study
    from mlflow_ngraph.study import parse
    from mlflow_ngraph.tracking.schema import Tag

    path = home / "products.onnx"
    model(path)
    study = parse(
        {
            "name": "large-engine", "workloads": [f"onnx:{path}"], "compilers": ["onnxruntime"], "batch_sizes": [1],
            "repetitions": 5, "threads": 2, "warmup": {"window": 2, "max_seconds": 1},
            "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9},
        }
    )  # fmt: skip
    outcome = run_study(study, home=home, tracking_uri=uri, experiment="large-engine")
    if outcome.exit_code or outcome.unrecorded:
        raise SystemExit(f"the study did not end well: {outcome.unrecorded or outcome.exit_code}")
    client = MlflowClient(uri)
    logged = client.search_logged_models([client.get_experiment_by_name("large-engine").experiment_id])
    (found,) = [one for one in logged if one.tags[Tag.COMPILER] == "onnxruntime"]  # beside the baseline
    return f"models:/{found.model_id}"
