"""What was found out about workloads is not asked again, as long as it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import plan_study, runner
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.execute import known_workloads
from mlflow_ngraph.study import Study, parse
from tests.support.onnx_models import residual_block


def study(*workloads: str) -> Study:
    return parse(
        {
            "name": "checked",
            "workloads": list(workloads),
            "compilers": ["identity"],
            "batch_sizes": [1],
            "device": "host",
        }
    )


@pytest.fixture
def asked(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The workloads that a child process was asked for."""
    found: list[str] = []
    really = runner.ask_child

    def ask(command: str, **fields: Any) -> Any:
        found.extend(ref["target"] for ref in fields["workloads"])
        return really(command, **fields)

    monkeypatch.setattr(runner, "ask_child", ask)
    return found


@pytest.mark.usefixtures("processes")
def test_a_model_that_is_known_to_exist_needs_no_process(asked: list[str]) -> None:
    first = plan_study(study("timm:resnet10t"))
    assert asked == ["resnet10t"]
    assert plan_study(study("timm:resnet10t")) == first
    assert asked == ["resnet10t"]
    plan_study(study("timm:resnet10t", "timm:lcnet_050"))
    assert asked == ["resnet10t", "lcnet_050"]


@pytest.mark.usefixtures("processes")
def test_another_release_may_have_other_models(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plan_study(study("timm:resnet10t"))
    monkeypatch.setattr(known_workloads, "version", lambda name: "0.0.1")
    plan_study(study("timm:resnet10t"))
    assert asked == ["resnet10t", "resnet10t"]


@pytest.mark.usefixtures("processes")
def test_what_does_not_exist_is_asked_for_each_time(asked: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(WorkloadError, match="did you mean"):
            plan_study(study("timm:resnet10x"))
    assert asked == ["resnet10x", "resnet10x"]


@pytest.mark.usefixtures("processes")
def test_a_file_may_change(asked: list[str], tmp_path: Path) -> None:
    path = residual_block(tmp_path).path
    for _ in range(2):
        plan_study(study(f"onnx:{path}"))
    assert len(asked) == 2
