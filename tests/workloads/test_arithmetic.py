"""Models in other arithmetic than their own, and what that tells of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlflow_ngraph import parity
from mlflow_ngraph.workloads.arithmetic import Disturbed, Naive, Wide
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.baseline import ModuleBaseline
from mlflow_ngraph.workloads.trial_references import Trials, collect


class HalfInside(nn.Module):
    """Computes a part in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layer(given).half(), -1).float()


class Ties(nn.Module):
    """Sorts numbers of which many are equal."""

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.topk(torch.round(given), 3)


class Raises(nn.Module):
    """Refuses to be watched."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not here")
        return 2 * given


class Offset(nn.Module):
    """Loses most of its digits: ill-conditioned."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(given + 3000.0, (16,))


class Logarithm(nn.Module):
    """Gives NaN for all inputs but positive ones."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.log(given)


class Cache(nn.Module):
    """Writes into a tensor of its own."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros(given.shape)
        kept[:, :2].copy_(given[:, :2] / 3)
        return kept.add_(given)


def known(module: nn.Module, width: int = 16) -> Trials:
    spec = TensorSpec("x", "float32", (BATCH, width))
    baseline = ModuleBaseline(module.eval())
    example = [spec.random(4, np.random.default_rng(0))]
    return collect(baseline, [spec], 4, 0, example, baseline.run(example))


def test_double_precision_leaves_out_the_roundings_that_the_model_makes_itself() -> None:
    module, given = HalfInside().eval(), np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    (exact,) = ModuleBaseline(module).exact([given])
    layer = module.layer
    logits = given.astype(np.float64) @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(exact, shares, rtol=1e-12)
    assert layer.weight.dtype is torch.float32


def test_what_is_written_into_is_wide_too() -> None:
    given = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    (exact,) = ModuleBaseline(Cache()).exact([given])
    wanted = given.astype(np.float64)
    wanted[:, :2] *= 4 / 3
    np.testing.assert_allclose(exact, wanted, rtol=1e-12)


def test_a_long_sum_is_taken_term_by_term() -> None:
    given = torch.full((1, 50_000), 0.1)
    with Naive() as mode:
        naive = given.sum(-1)
    with Wide():
        exact = given.sum(-1)
    assert mode.longest == 50_000
    assert abs(float(naive - exact)) > 20 * abs(float(given.sum(-1).double() - exact))


def test_a_disturbance_is_a_few_roundings_and_leaves_weights_as_they_are() -> None:
    layer, given = nn.Linear(16, 16), torch.randn(4, 16)
    before = layer.weight.detach().clone()
    with torch.no_grad(), Disturbed(0):
        moved = layer(given)
    difference = (moved - layer(given)).abs().max()
    assert 0 < difference < 1e-5
    assert torch.equal(before, layer.weight)


@pytest.mark.parametrize("module", [Offset(), HalfInside()])
def test_as_near_to_the_truth_as_the_model_itself_is_right_and_a_fault_is_not(module: nn.Module) -> None:
    trials = known(module)
    assert trials.trials
    for trial, (native,), exact in zip(trials.trials, trials.outputs, trials.exact, strict=True):
        (allowed,) = trial.rounding
        assert exact is not None
        assert allowed is not None
        other = exact[0] - 3 * (native - exact[0])  # thrice as far, on the other side
        assert parity.beyond(parity.errors(other.astype(np.float32), exact[0], native), allowed) is None
        if trial.kind == "normal":
            wrong = native.copy()
            wrong[0, 0] += 0.1 * np.abs(native).max()
            assert parity.beyond(parity.errors(wrong, exact[0], native), allowed)


def test_what_is_rounded_to_decimals_falls_to_the_other_side_of_a_tie() -> None:
    given = torch.tensor([[0.25, 0.31]])
    with torch.no_grad(), Disturbed(0, at_steps=True):
        moved = torch.round(given, decimals=1)
    torch.testing.assert_close(moved, torch.tensor([[0.3, 0.3]]), rtol=1e-4, atol=1e-4)


def test_ties_that_fall_otherwise_are_no_fault_and_wrong_places_are() -> None:
    trials = known(Ties())
    tied = next(place for place, trial in enumerate(trials.trials) if trial.kind == "small")
    native, allowed = trials.outputs[tied][1], trials.trials[tied].rounding[1]
    assert allowed is not None
    assert allowed.integers > 0.5
    assert parity.beyond(parity.errors(native + 1, native, native), allowed) is None
    clear = known(nn.Sequential())  # nothing is rounded, so nothing is tied
    assert clear.trials[0].rounding[0] is not None


def test_inputs_without_a_number_judge_nobody() -> None:
    trials = known(Logarithm())
    kinds = {trial.kind: trial for trial in trials.trials}
    assert kinds["normal"].rounding == (None,)
    assert not kinds["normal"].unchecked
    assert kinds["uniform"].rounding[0] is not None


def test_a_model_that_cannot_be_disturbed_is_not_ill_conditioned() -> None:
    trials = known(Raises())
    assert trials.trials
    assert all("not here" in trial.unchecked for trial in trials.trials)
    assert all(trial.amplification == (0.0,) for trial in trials.trials)


def test_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    trials = known(Logarithm())
    trials.write(tmp_path / "t.json", tmp_path / "t.npz")
    read = Trials.read(tmp_path / "t.json", tmp_path / "t.npz")
    assert (read.trials, read.example) == (trials.trials, trials.example)
    for ours, theirs in zip(read.outputs, trials.outputs, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
    assert not Trials.read(tmp_path / "t.json", None).outputs
