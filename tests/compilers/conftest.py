from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_testing import steps
from mlflow_ngraph_testing.steps import in_fresh_process
from tests.support.tensorrt_machine import machine, newest

__all__ = ["cnn", "fixed", "machine", "newest", "prepared"]

# Tests import OpenVINO themselves; see the adapter for what that would do otherwise.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def prepared(compilers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Materials of two small models in every format at batch sizes 1 and 3."""
    directory = tmp_path_factory.mktemp("prepared")
    formats = ["module", "exported", "onnx"]
    in_fresh_process(steps.prepare_models, directory, ["cnn", "fixed_batch"], [1, 3], formats)
    return directory


@pytest.fixture
def cnn(prepared: Path) -> Source:
    return Source(prepared / "cnn")


@pytest.fixture
def fixed(prepared: Path) -> Source:
    return Source(prepared / "fixed_batch")
