"""What the values of filters mean."""

from __future__ import annotations

import pandas as pd
import pytest

from mlflow_ngraph.analysis.selection import Selection, moment
from mlflow_ngraph.errors import UnknownNameError, UsageError
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.workloads.naming import unique_names
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
    with pytest.raises(UsageError, match="ambiguous: torch:mymods:branch#01234567, torch:mymods:branch#ba987654"):
        Selection(workloads=("torch:mymods:branch",)).check(several)


def test_a_label_of_before_means_the_model_that_it_named() -> None:
    refs = ["torch:v1.nets:net#01234567", "torch:v2.nets:net#01234567", "onnx:models/net.onnx"]

    def recorded(*refs: str) -> pd.DataFrame:
        labels = unique_names(dict.fromkeys(refs, "net"))
        return cells(workload=list(refs), label=[labels[ref] for ref in refs])

    before = recorded(*refs)["label"].tolist()
    assert before == ["net (v1.nets:net)", "net (v2.nets:net)", "net (onnx)"]
    another = recorded(*refs, "onnx:other/net.onnx")
    for label, ref in zip(before[:2], refs[:2], strict=True):
        assert Selection(workloads=(label,)).of(another)["workload"].tolist() == [ref]
    again = recorded(*refs, "torch:v1.nets:net#ba987654", "onnx:other/net.onnx")
    for label, said in (
        (before[0], "ambiguous: torch:v1.nets:net#01234567, torch:v1.nets:net#ba987654"),
        (before[2], "ambiguous: onnx:models/net.onnx, onnx:other/net.onnx"),
    ):
        with pytest.raises(UsageError, match=said):
            Selection(workloads=(label,)).check(again)
    assert len(Selection(workloads=("net",)).of(again)) == 5


def test_what_comes_closest_is_proposed_without_a_wall_of_names() -> None:
    said = str(UnknownNameError("metric", "latency", CELL_METRICS))
    assert "did you mean 'latency_mean_ms' or 'latency_p50_ms'?" in said
    assert said.count("latency") < 10
    many = [f"timm:model{number}" for number in range(100)]
    assert len(str(UnknownNameError("workload", "timm:model", many))) < 250
    said = str(UnknownNameError("workload", "zzz", many))
    listed, more = said.removeprefix("unknown workload 'zzz': known: ").split(" and ")
    assert len(listed) <= 100
    assert more == f"{100 - len(listed.split(', '))} more"
    assert str(UnknownNameError("workload", "zzz", ["y" * 150])).endswith("known: " + "y" * 150)


def test_times_are_said_to_the_second() -> None:
    with pytest.raises(UsageError, match=r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d alone fits 0 of 1 cells"):
        Selection(since=moment("5m")).check(cells())
