from __future__ import annotations

import pytest

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.describe import describe
from mlflow_ngraph.workloads.registry import create
from mlflow_ngraph.workloads.timm import TimmWorkload


def workload(text: str, **init: bool) -> TimmWorkload:
    found = create(WorkloadRef.parse(text), Init(**init))
    assert isinstance(found, TimmWorkload)
    return found


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet34", "resnet"),
        ("tf_efficientnet_b0", "efficientnet"),
        ("mobilenetv3_small_100", "mobilenetv3"),
        ("vit_base_patch16_224.augreg_in1k", "vit"),
        ("vgg16", "vgg"),
        ("inception_v3", "inception"),
        ("regnety_002", "regnety"),
        ("resnetv2_50", "resnetv2"),
    ],
)
def test_family_of_other_models(name: str, family: str) -> None:
    assert workload(f"timm:{name}").family == family


def test_unknown_model_names_the_closest() -> None:
    with pytest.raises(WorkloadError, match=r"did you mean .*resnet18"):
        workload("timm:resnet18x").check()


def test_missing_pretrained_weights_are_said() -> None:
    with pytest.raises(WorkloadError, match=r"no weights tagged 'nope' for 'resnet18': known: resnet18[.]a1_in1k"):
        workload("timm:resnet18.nope").check()
    with pytest.raises(WorkloadError, match="no pretrained weights for 'coatnet_0_224'"):
        workload("timm:coatnet_0_224", pretrained=True).check()


def test_a_vision_transformer_takes_another_size() -> None:
    found = workload("timm:vit_tiny_patch16_224?image_size=32")
    assert found.inputs()[0].shape == ("batch", 3, 32, 32)
    assert found.skeleton().patch_embed.img_size == (32, 32)


def test_a_size_that_the_model_refuses_is_explained() -> None:
    with pytest.raises(WorkloadError, match=r"maxvit_tiny_rw_224\?image_size=50 .*(cannot build it|does not run on)"):
        describe(workload("timm:maxvit_tiny_rw_224?image_size=50"))


def test_own_default_size_of_other_models() -> None:
    assert workload("timm:tf_efficientnet_b1").inputs()[0].shape == ("batch", 3, 240, 240)
