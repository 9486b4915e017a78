"""The contract suite on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mlflow_ngraph.devices import probes
from mlflow_ngraph_testing.steps import Job


class OnGpu:
    """Put before the suite of an adapter, it compiles for the GPU, or skips the suite where there is none."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def gpu(cls) -> None:
        obstacle = probes.gpu_obstacle()
        if obstacle:
            pytest.skip(f"no NVIDIA GPU: {obstacle}")

    @classmethod
    def _job(cls, flags: Mapping[str, Any] | None = None, **target: Any) -> Job:
        return super()._job(flags, **{"accelerator": "cuda", **target})  # type: ignore[misc]
