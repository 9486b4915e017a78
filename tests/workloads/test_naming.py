"""What workloads of one label are called beside each other."""

from __future__ import annotations

import pytest

from mlflow_ngraph.workloads.naming import base_label, unique_names

TORCH, ONNX = "torch:shopvision.models:classifier#79e1837d", "onnx:classifier.onnx"


@pytest.mark.parametrize(
    ("workloads", "names"),
    [
        ((TORCH,), ("m",)),
        ((TORCH, ONNX), ("m (torch)", "m (onnx)")),
        (("onnx:a/m.onnx", "onnx:b/m.onnx"), ("m (a/m.onnx)", "m (b/m.onnx)")),
        (("onnx:m.onnx?k=2", "onnx:m.onnx?k=3"), ("m (k=2)", "m (k=3)")),
        (("torch:m:f#79e1837d", "torch:m:f#0123abcd"), ("m (torch:m:f#79e1837d)", "m (torch:m:f#0123abcd)")),
        (("onnx:a/m.onnx", "onnx:b/m.onnx", "torch:m:f"), ("m (a/m.onnx)", "m (b/m.onnx)", "m (torch)")),
    ],
)
def test_the_first_thing_that_tells_them_apart_stands_behind(
    workloads: tuple[str, ...], names: tuple[str, ...]
) -> None:
    labels = dict.fromkeys(workloads, "m")
    named = unique_names(labels)
    assert tuple(named.values()) == names
    assert unique_names(named) == named, "a name that was given once stays"
    assert {base_label(name) for name in names} == {"m"}


def test_a_name_is_given_up_where_nothing_shares_the_label() -> None:
    assert unique_names({ONNX: "classifier (onnx)", "timm:resnet18": "ResNet-18"}) == {
        ONNX: "classifier",
        "timm:resnet18": "ResNet-18",
    }
