"""An engine needs nothing but its model: MLflow makes an environment from it, and there the engine is served."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph_testing import fresh
from tests.support.logged import Logged


@pytest.mark.usefixtures("compilers")
@pytest.mark.skipif(
    not os.environ.get("NGRAPH_TEST_ONLINE"), reason="installs packages; NGRAPH_TEST_ONLINE=1 says that it may"
)
def test_an_engine_is_served_from_an_environment_of_its_own(logged: Logged, tmp_path: Path) -> None:
    package = open_package(logged.packages["onnxruntime"])
    with fresh.served(f"models:/{logged.models['onnxruntime']}", logged.uri, tmp_path / "fresh") as asked:
        assert fresh.installed(asked, ["torch", "openvino", "tvm", "onnxruntime"]) == ["onnxruntime"]
        _, problem = fresh.answers(package, asked)
        assert not problem
        with pytest.raises(fresh.ServingError, match="the server answers 400"):
            asked.ask({"input": np.zeros((1, 3), np.float32)})
        done = asked.run("engine", "verify", f"models:/{logged.models['onnxruntime']}", tracking_uri=logged.uri)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("compilers")
def test_what_cannot_be_served_says_why(logged: Logged, tmp_path: Path) -> None:
    with (
        pytest.raises(fresh.ServingError, match=r"(?s)its server ended: .*none"),
        fresh.served("models:/none@such", logged.uri, tmp_path / "fresh", "local"),
    ):
        pytest.fail("nothing is served")
