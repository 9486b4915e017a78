from __future__ import annotations

import pytest
import torch

from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.catalogue import paper_blocks, paper_models
from mlflow_ngraph.workloads.describe import describe
from mlflow_ngraph.workloads.macs import count
from mlflow_ngraph.workloads.registry import catalogue, create

TABLE_4 = {
    "ResNet-18": (11689512, 1814083944),
    "ResNet-50": (25557032, 4089238376),
    "ResNet-101": (44549160, 7801511784),
    "EfficientNet-B3": (12233232, 962729320),
    "EfficientNet-B4": (19341616, 1503740472),
    "EfficientNet-B5": (30389784, 2356534504),
    "DeiT-Small": (22059496, 79557352),
    "DeiT-Medium": (38849512, 115513320),
    "DeiT-Base": (86585320, 201581032),
    "Swin-Tiny": (28328674, 52152040),
    "Swin-Small": (49737298, 66312424),
    "Swin-Base": (71125762, 94739176),
    "ConvNeXt-Tiny": (28589128, 322371592),
    "ConvNeXt-Small": (50223688, 411391240),
    "ConvNeXt-Base": (88591464, 646530408),
}
TABLE_5 = {
    ("conv", 64): 37056,
    ("conv", 96): 83232,
    ("conv", 128): 147840,
    ("conv", 256): 590592,
    ("mha", 128): 66048,
    ("mha", 256): 263168,
    ("mha", 384): 591360,
    ("mha", 512): 1050624,
}


def test_catalogue_repeats_both_tables() -> None:
    models, blocks = catalogue()[:15], catalogue()[15:]
    assert {info.label: (info.parameters, info.paper_macs) for info in models} == TABLE_4
    assert {(row.block, row.width): row.parameters_per_block for row in paper_blocks()} == TABLE_5
    assert [info.parameters for info in blocks] == list(TABLE_5.values())
    assert {info.family for info in models} == {"ResNets", "EfficientNets", "DeiTs", "Swins", "ConvNeXts"}
    assert all(info.inputs[0].shape == ("batch", 3, 224, 224) for info in models)


@pytest.mark.long
@pytest.mark.usefixtures("compilers")
def test_table_4_is_what_the_counters_find() -> None:
    torchvision_hook.install()
    import timm

    for name, model in paper_models().items():
        with torch.device("meta"):
            module = timm.create_model(name).eval()
        found = count(module, [torch.empty(1, 3, 224, 224, device="meta")])
        assert found == (model.parameters, model.paper_macs, model.true_macs), name


@pytest.mark.parametrize(("block", "width"), TABLE_5)
@pytest.mark.parametrize("depth", [1, 3])
def test_table_5_is_what_the_counters_find(block: str, width: int, depth: int) -> None:
    workload = create(WorkloadRef("block", block, {"width": width, "depth": depth}), Init())
    known = workload.known
    assert known is not None
    with torch.device("meta"):
        module = workload.skeleton()
    found = count(module, [torch.empty(spec.resolve(1), device="meta") for spec in workload.inputs()])
    assert found == (known.parameters, known.paper_macs, known.true_macs)
    assert known.parameters == depth * TABLE_5[block, width]


def test_a_stem_is_outside_the_counts() -> None:
    plain = create(WorkloadRef.parse("block:conv?width=8&image_size=16"), Init())
    stemmed = create(WorkloadRef.parse("block:conv?width=8&image_size=16&stem=true"), Init())
    assert stemmed.inputs()[0].shape == ("batch", 3, 16, 16)
    assert plain.known is not None
    assert stemmed.known is not None
    assert stemmed.known.parameters == plain.known.parameters
    assert stemmed.module()(torch.rand(1, 3, 16, 16)).shape == (1, 8, 16, 16)


def test_attention_products_count_on_every_path() -> None:
    class Attention(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(values, values, values)

    assert count(Attention(), [torch.rand(1, 2, 5, 8)])[2] == 2 * 2 * 5 * 5 * 8
    encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    assert count(encoder, [torch.rand(1, 6, 16)])[2] == 6 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 6 * 6 * 16
    assert torch.backends.mha.get_fastpath_enabled()


def test_other_timm_models_are_built_and_counted() -> None:
    info = describe(create(WorkloadRef.parse("timm:mobilenetv3_small_050?image_size=64"), Init()))
    assert info.label == "mobilenetv3_small_050@64"
    assert info.family == "mobilenetv3"
    assert info.inputs[0].shape == ("batch", 3, 64, 64)
    assert info.parameters is not None
    assert info.true_macs is not None
    assert info.paper_macs is not None
    assert info.parameters > 1_000_000
    assert info.true_macs < info.paper_macs  # which count biases and normalisations too
