"""What the values of filters mean."""

from __future__ import annotations

import pytest

from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.metrics import CELL_METRICS
from tests.support.tidy import cells


def test_a_reference_without_options_is_the_only_model_that_has_it() -> None:
    refs = ["torch:mymods:branch#01234567", "timm:resnet18", "timm:resnet18?image_size=64", "torch:mymods:two?a=1"]
    frame = cells(workload=refs, label=["branch", "resnet18", "resnet18-64", "two"])
    for value, expected in (
        ("torch:mymods:branch", refs[:1]),
        ("timm:resnet18", refs[1:2]),
        ("torch:mymods:two", refs[3:]),
    ):
        asked = Selection(workloads=(value,))
        asked.check(frame)
        assert asked.of(frame)["workload"].tolist() == expected
    several = cells(workload=[refs[0], "torch:mymods:branch#ba987654"], label=["branch", "branch"])
    with pytest.raises(
        UnknownNameError, match="did you mean 'torch:mymods:branch#01234567' or 'torch:mymods:branch#ba98"
    ):
        Selection(workloads=("torch:mymods:branch",)).check(several)


def test_what_comes_closest_is_proposed_without_a_wall_of_names() -> None:
    said = str(UnknownNameError("metric", "latency", CELL_METRICS))
    assert "did you mean 'latency_mean_ms' or 'latency_p50_ms'?" in said
    assert said.count("latency") < 10
    many = [f"timm:model{number}" for number in range(100)]
    assert len(str(UnknownNameError("workload", "timm:model", many))) < 250
