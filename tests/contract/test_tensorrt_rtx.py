from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from mlflow_ngraph_testing.contract import CompilerContract
from mlflow_ngraph_testing.steps import Job

pytestmark = pytest.mark.usefixtures("compilers")


class TestTensorRTRTX(CompilerContract):
    """Engines are built for an Ada GPU where there is none; whatever would run one is skipped then."""

    compiler = "tensorrt-rtx"
    build_for = "gpu:sm89"
    other_flags: ClassVar = {
        "dynamic_batch": True,
        "workspace_mib": 256,
        "hardware_compatibility": "ampere_plus",
        "kernel_specialization": "lazy",
        "cuda_graph": True,
        "requests": 3,
    }
    never_imported = ("torch", "timm", "onnx")

    @classmethod
    def _job(cls, flags: Mapping[str, Any] | None = None, **target: Any) -> Job:
        return super()._job(flags, **{"accelerator": "cuda", **target})
