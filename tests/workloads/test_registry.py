from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_ngraph.errors import UnknownNameError, WorkloadError
from mlflow_ngraph.study import WorkloadChoice
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.catalogue import paper_models
from mlflow_ngraph.workloads.registry import WORKLOADS, create

IMAGE = {"inputs": [{"shape": ["batch", 3, 8, 8]}]}


def canonical(text: str, **options: object) -> str:
    return str(create(WorkloadChoice(ref=text, options=options).parsed(), Init()).ref)


def test_every_scheme_is_registered() -> None:
    assert WORKLOADS.names()[:6] == ["timm", "block", "onnx", "torch", "pt2", "mlflow"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", "timm:resnet18"),
        ("ResNet-18", "timm:resnet18"),
        ("RESNET_101", "timm:resnet101"),
        ("deit-small", "timm:deit3_small_patch16_224"),
        ("deit3_small_patch16_224", "timm:deit3_small_patch16_224"),
        ("swin_tiny", "timm:swin_s3_tiny_224"),
        ("Swin Base", "timm:swin_s3_base_224"),
        ("efficientnet-b3", "timm:efficientnet_b3"),
        ("convnext_tiny", "timm:convnext_tiny"),
        ("timm:resnet18", "timm:resnet18"),
        ("timm:resnet18?image_size=224", "timm:resnet18"),
        ("resnet18?image_size=96", "timm:resnet18?image_size=96"),
    ],
)
def test_one_workload_has_one_canonical_text(name: str, expected: str) -> None:
    assert canonical(name) == expected


def test_all_labels_and_timm_names_of_the_paper_resolve() -> None:
    for name, model in paper_models().items():
        assert canonical(name) == canonical(model.label) == f"timm:{name}"


def test_unknown_paper_name_names_the_closest_of_the_fifteen() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'resnet-18'") as caught:
        create(WorkloadRef("paper", "ResNet-19"), Init())
    assert "15 are known, the closest: resnet-18, " in str(caught.value).lower()


def test_options_given_as_text_or_mapping_are_the_same() -> None:
    text = canonical("block:conv?width=64&stem=true")
    assert text == canonical("block:conv", width=64, depth=1, stem=True)
    assert text == "block:conv?depth=1&stem=true&width=64"


def test_nested_options_make_distinct_texts() -> None:
    ref = "torch:tests.workloads.models:image_classifier"
    texts = {
        canonical(ref, **IMAGE),
        canonical(ref, inputs=[{"shape": ["batch", 3, 9, 9]}]),
        canonical(ref, **IMAGE, kwargs={"channels": 8}),
    }
    assert len(texts) == 3
    assert canonical(ref, inputs=[{"shape": ["batch", 3, 8, 8], "dtype": "float32"}]) in texts


@pytest.mark.parametrize(
    ("ref", "options", "message"),
    [
        ("nope:x", {}, "unknown workload scheme 'nope'"),
        ("block:pool", {"width": 4}, "unknown block 'pool'"),
        ("block:conv", {}, "width: missing: say what it is"),
        ("block:conv", {"width": 64, "dept": 2}, "did you mean 'depth'"),
        ("block:conv", {"width": 0}, "expected at least 1"),
        ("block:conv", {"width": "wide"}, "expected a whole number"),
        ("block:mha", {"width": 12}, "not a multiple of 8 heads"),
        ("block:conv", {"width": 8, "heads": 2}, "heads: unknown key"),
        ("timm:resnet18", {"size": 3}, "size: unknown key: allowed: image_size"),
        ("torch:module", IMAGE, "write torch:package.module:callable"),
        ("torch:module:name", {}, "needs its inputs"),
        ("torch:module:name", {"inputs": []}, "inputs"),
        ("torch:module:name", {"inputs": [{"shape": ["batch", 3], "dtype": "float31"}]}, "dtype"),
        ("torch:module:name", {"inputs": [{"shape": ["batch", 0]}]}, "sizes must be at least 1"),
        ("torch:module:name", {"inputs": [{"shape": [2], "low": 5, "high": 5}]}, "high must be larger"),
        (
            "torch:module:name",
            {"inputs": [{"shape": [2], "dtype": "uint8", "low": -3, "high": 300}]},
            "uint8 holds 0 to 255, found low -3 and high 300",
        ),
        ("torch:module:name", {"inputs": [{"shape": [2], "dtype": "uint16", "low": -1}]}, "uint16 holds 0 to 65535"),
        ("onnx:a.onnx", {"dims": {"x": "long"}}, "dims"),
        ("onnx:a.onnx", {"ranges": {"ids": [5, 5]}}, "ranges: ids: high must be larger than low"),
        ("pt2:a.pt2", {"hihg": 4}, "did you mean 'high'"),
        ("mlflow:models:/a@b", {"input": []}, "did you mean 'inputs'"),
    ],
)
def test_wrong_references_are_refused_in_one_line(ref: str, options: dict[str, object], message: str) -> None:
    with pytest.raises((WorkloadError, UnknownNameError)) as caught:
        create(WorkloadChoice(ref=ref, options=options).parsed(), Init())
    assert message.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_recorded_reference_keeps_all_but_the_options_that_are_a_digest() -> None:
    nested = WorkloadRef("torch", "module:factory", {"depth": 2, "inputs": [{"shape": [3, 4]}]})
    assert WorkloadRef.recorded(str(nested)) == WorkloadRef("torch", "module:factory", {"depth": "2"})
    assert WorkloadRef.recorded(str(WorkloadRef("timm", "resnet18"))) == WorkloadRef("timm", "resnet18")
    assert WorkloadRef.recorded("resnet18") is None


def test_specifications_survive_json() -> None:
    info = WorkloadInfo("r", "l", "f", (TensorSpec("x", "int64", ("batch", 3), 1, 9),), 1, 2, 3, None, "s")
    assert WorkloadInfo.from_dict(info.as_dict()) == info


@pytest.mark.usefixtures("processes")
def test_creating_workloads_imports_no_runtime() -> None:
    code = (
        "import sys\n"
        "from mlflow_ngraph.workloads.base import Init, WorkloadRef\n"
        "from mlflow_ngraph.workloads.registry import catalogue, create\n"
        "assert len(catalogue()) == 23\n"
        "for text in ('onnx:a.onnx', 'pt2:a.pt2', 'mlflow:models:/a@b', 'timm:vit_tiny_patch16_224'):\n"
        "    create(WorkloadRef.parse(text), Init())\n"
        "heavy = {'torch', 'timm', 'onnx', 'onnxruntime', 'mlflow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("net.onnx", "net.onnx is a file: write onnx:net.onnx"),
        ("net.py", "net.py is a file: write torch:net:FUNCTION"),
        ("torch:./nets/small.py:cnn", "name the module, not its file: torch:nets.small:cnn"),
    ],
)
def test_a_file_is_told_how_to_be_written(
    name: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / Path(name).name).touch()
    with pytest.raises(WorkloadError, match=re.escape(wanted)):
        create(WorkloadChoice(ref=name, options=IMAGE if ":" in name else {}).parsed(), Init())
