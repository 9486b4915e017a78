from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from mlflow_ngraph.workloads import weights
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadRef
from mlflow_ngraph.workloads.initialise import calibrate, seeded
from mlflow_ngraph.workloads.registry import create

pytestmark = pytest.mark.long

BRANCHES = {
    "resnet18": ["layer1.0.bn2", "layer4.1.bn2"],
    "deit-small": ["blocks.0.ls1", "blocks.0.ls2", "blocks.11.ls1", "blocks.11.ls2"],
    "convnext-tiny": ["stages.0.blocks.0", "stages.2.blocks.8", "stages.3.blocks.2"],
}


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(7))


def cosine(outputs: torch.Tensor, reference: torch.Tensor) -> float:
    return float(torch.cosine_similarity(outputs, reference, dim=1).min())


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", BRANCHES)
@torch.inference_mode()
def test_parity_fails_when_a_residual_branch_is_dropped(name: str) -> None:
    model = create(WorkloadRef("paper", name), Init()).module()
    reference = model(images())
    for branch in BRANCHES[name]:
        module = model.get_submodule(branch)
        parts = [module.gamma] if hasattr(module, "gamma") else [module.weight, module.bias]
        kept = [part.clone() for part in parts]
        for part in parts:
            part.zero_()
        assert cosine(model(images()), reference) < 0.999, branch
        for part, content in zip(parts, kept, strict=True):
            part.copy_(content)
    assert cosine(model(images()), reference) > 0.999999


@pytest.mark.usefixtures("compilers")
@torch.inference_mode()
def test_deep_networks_do_not_amplify_rounding() -> None:
    model = create(WorkloadRef("paper", "efficientnet-b5"), Init()).module()
    reference = model(images())
    disturbed = model(images() * (1 + 1e-4))
    assert float((disturbed - reference).norm() / reference.norm()) < 1e-3


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", ["resnet18", "efficientnet-b3", "swin-tiny"])
@torch.inference_mode()
def test_outputs_have_a_sane_scale_and_differ_between_samples(name: str) -> None:
    outputs = create(WorkloadRef("paper", name), Init()).module()(images())
    assert 0.05 < float(outputs.std()) < 20
    assert float((outputs[0] - outputs[1]).std()) > 0.05 * float(outputs.std())


def test_without_calibration_the_published_initialisation_stays() -> None:
    model = create(WorkloadRef.parse("timm:resnet18"), Init(calibrate=False)).module()
    assert not model.layer1[0].bn2.weight.any()


@pytest.mark.usefixtures("processes")
def test_a_seed_gives_the_same_model_in_every_process() -> None:
    code = (
        "from mlflow_ngraph.workloads import weights\n"
        "from mlflow_ngraph.workloads.base import Init, WorkloadRef\n"
        "from mlflow_ngraph.workloads.registry import create\n"
        "ref = WorkloadRef.parse('block:conv?width=8&depth=2&image_size=16')\n"
        "print(weights.digest(create(ref, Init(seed=3)).module()))\n"
    )
    digests = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2)}
    here = create(WorkloadRef.parse("block:conv?width=8&depth=2&image_size=16"), Init(seed=4)).module()
    assert len(digests) == 1
    assert digests != {weights.digest(here) + "\n"}


def test_building_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    create(WorkloadRef.parse("block:mha?width=16"), Init()).module()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_constants_come_alive_and_modes_stay() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.normalisation = nn.BatchNorm1d(4)
            self.dropout = nn.Dropout(0.9)
            self.gain = nn.Parameter(torch.zeros(()))
            self.temperature = nn.Parameter(torch.tensor(2.5))
            self.gamma = nn.Parameter(torch.full((4,), 1e-6))
            self.positions = nn.Parameter(torch.zeros(1, 4))
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            branch = self.dropout(self.normalisation(self.linear(values + self.positions)))
            return values + self.gain * self.gamma * branch / self.temperature

    with seeded(0):
        model = Gated().eval()
    calibrate(model, [TensorSpec("input", "float32", ("batch", 4))], 0, "gated")
    assert float(model.gain) == 1.0
    assert float(model.temperature) == 2.5
    for parameter in (model.gamma, model.positions, model.linear.weight, model.linear.bias):
        assert float(parameter.abs().min()) > 1e-4
    assert not any(module.training for module in model.modules())
    assert model.normalisation.momentum == 0.1
    assert float(model.normalisation.running_var.std()) > 0
