"""Models in other arithmetic than their own, and what that tells of rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from mlflow_ngraph import parity
from mlflow_ngraph.workloads.arithmetic import AcrossSteps, Disturbed
from mlflow_ngraph.workloads.base import BATCH, TensorSpec
from mlflow_ngraph.workloads.baseline import ModuleBaseline, OnnxBaseline
from mlflow_ngraph.workloads.double_precision import double_precision
from mlflow_ngraph.workloads.naive_sums import Naive
from mlflow_ngraph.workloads.trial_references import Trials, collect, observed
from mlflow_ngraph.workloads.trials import draw
from mlflow_ngraph_onnx.converter import OnnxModule

pytestmark = pytest.mark.usefixtures("all_trials")


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


class TwoSteps(nn.Module):
    """Rounds twice."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.round(given[:, 1:] - 0.3 * torch.round(given[:, :1]))


class Cache(nn.Module):
    """Writes into a tensor of its own."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros(given.shape)
        kept[:, :2].copy_(given[:, :2] / 3)
        return kept.add_(given)


def graph(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """From ``x`` to ``y``; scales and zero points are ``s`` and ``z``."""
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.05]),
        helper.make_tensor("z", TensorProto.UINT8, [], [130]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])
    wanted = helper.make_tensor_value_info("y", kind, [4, 16])
    made = helper.make_graph(list(nodes), "graph", [given], [wanted], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


THERE_AND_BACK = (
    helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
)


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
    with Naive():
        naive = given.sum(-1)
    with double_precision():
        exact = given.sum(-1)
    assert abs(float(naive - exact)) > 20 * abs(float(given.sum(-1).double() - exact))


def test_a_long_sum_is_taken_in_the_order_of_memory_however_its_axes_are_named() -> None:
    """Two images whose sums nearly cancel: taken in turns no partial sum is large."""
    given = torch.stack([torch.full((1000,), -0.97), torch.full((1000,), 1.0)])
    with Naive():
        assert given.sum((1, 0)) == given.sum((0, 1)) == given.sum()


@pytest.mark.parametrize(
    "norm",
    [nn.GroupNorm(4, 4), nn.LayerNorm(1000), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)],
)
def test_a_norm_is_of_long_sums(norm: nn.Module) -> None:
    """Of a constant little is left but the error of its mean, which TVM computes so."""
    given = torch.full((1, 4, 1000), 0.3235)
    with torch.no_grad():
        own = norm(given)
        with Naive():
            naive = norm(given)
        with double_precision():
            exact = norm(given)
    assert naive.shape == own.shape
    assert (naive - exact).abs().max() > 10 * (own - exact).abs().max()


@pytest.mark.parametrize("correction", [0, 1])
def test_a_variance_is_of_long_sums(correction: int) -> None:
    given = torch.randn(3, 500, dtype=torch.float64).float()
    with Naive():
        variance, mean = torch.var_mean(given, -1, correction=correction, keepdim=True)
        whole = given.var()
    torch.testing.assert_close(variance, given.double().var(-1, correction=correction, keepdim=True).float())
    torch.testing.assert_close(mean, given.double().mean(-1, keepdim=True).float())
    torch.testing.assert_close(whole, given.double().var().float())


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
    with torch.no_grad(), AcrossSteps():
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
    assert all(trial.rounding == (None,) for trial in trials.trials)


def test_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    trials = known(Logarithm())
    trials.write(tmp_path / "t.json", tmp_path / "t.npz")
    read = Trials.read(tmp_path / "t.json", tmp_path / "t.npz")
    assert (read.trials, read.example) == (trials.trials, trials.example)
    for ours, theirs in zip(read.outputs, trials.outputs, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
    assert not Trials.read(tmp_path / "t.json", None).outputs


@pytest.mark.parametrize(
    ("module", "otherwise"),
    [
        (nn.ELU(), lambda x: np.where(x > 0, x, np.exp(x) - np.float32(1))),
        (nn.CELU(), lambda x: np.where(x > 0, x, np.exp(x) - np.float32(1))),
        (nn.Sigmoid(), lambda x: np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * x)),
        (nn.Mish(), lambda x: x * np.tanh(np.log(np.float32(1) + np.exp(x)))),
    ],
)
def test_a_function_may_be_off_by_roundings_of_what_it_computes_with(
    module: nn.Module, otherwise: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> None:
    trials = known(module)
    spec = TensorSpec("x", "float32", (BATCH, 16))
    example = [spec.random(4, np.random.default_rng(0))]
    for trial, (native,), exact in zip(trials.trials, trials.outputs, trials.exact, strict=True):
        (given,) = draw([spec], 4, 0, trial.number, example)[1]
        (allowed,) = trial.rounding
        if allowed is None or exact is None or np.abs(given).max() > 20:
            continue
        assert parity.beyond(parity.errors(otherwise(given), exact[0], native), allowed) is None, trial.kind


def test_softplus_is_off_by_roundings_of_its_input_however_small_it_is() -> None:
    """Kernels compute x + log(1 + e^-x): OpenVINO gives 4e-6 for -41.5."""
    given = torch.tensor([[-41.5, 0.0]])
    moved = []
    for seed in range(8):
        with Disturbed(seed):
            moved.append(nn.functional.softplus(given)[0])
    spread = torch.stack(moved).sub(nn.functional.softplus(given)[0]).abs().amax(0)
    assert 5e-6 < spread[0] < 8 * 2**-24 * 100
    assert spread[1] < 8 * 2**-24 * 10


def test_a_remainder_and_a_comparison_fall_to_the_other_side_where_two_numbers_are_equal() -> None:
    first, second = torch.tensor([2.0, 2.0, 3.0]), torch.tensor([2.0, 1.5, 2.0])
    with AcrossSteps() as mode:
        left, larger = torch.fmod(first, second), first > second
    assert mode.beside == [0, 1]
    assert left.tolist() == pytest.approx([2.0, 0.5, 1.0], rel=1e-4)
    assert larger.tolist() == [True, True, True]
    assert torch.fmod(first, second).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "chosen",
    [
        lambda computed: computed >= computed.amax(1, keepdim=True),
        lambda computed: computed.amax(1, keepdim=True) <= computed,
        lambda computed: computed == computed.max(1, keepdim=True).values,
        lambda computed: computed >= computed.topk(3).values[:, -1:],
        lambda computed: computed == computed.sort(1).values[:, -1:],
        lambda computed: computed < computed.kthvalue(8, 1, keepdim=True).values,
    ],
)
def test_a_number_compared_with_itself_is_no_tie(chosen: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Chosen(nn.Sequential):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            computed = super().forward(given)
            return torch.where(chosen(computed), computed, 0.0)

    torch.manual_seed(0)
    trials = known(Chosen(nn.Linear(16, 16)))
    normal = next(trial for trial in trials.trials if trial.kind == "normal")
    assert normal.rounding[0] is not None
    assert normal.rounding[0].largest < 1e-5


def test_two_ways_to_one_number_are_a_tie() -> None:
    class Ways(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return (given * 3.0 >= given + given + given).float()

    trials = known(Ways())
    normal = next(trial for trial in trials.trials if trial.kind == "normal")
    assert normal.rounding[0] is not None
    assert normal.rounding[0].largest > 0.01


def test_products_and_running_sums_are_taken_term_by_term_too() -> None:
    ones = torch.full((2, 3, 50_000), 0.1)
    with Naive():
        product, running = ones @ ones.mT, ones.cumsum(-1)
    with double_precision():
        exact = ones @ ones.mT
    assert product.shape == exact.shape
    assert (product - exact).abs().max() > 0.1
    assert (running[..., -1] - 5000.0).abs().max() > 1e-2


def test_a_disturbance_takes_no_number_to_another_step_but_one_beside_it() -> None:
    baseline = ModuleBaseline(OnnxModule(graph(*THERE_AND_BACK)).eval())
    clear = (np.arange(64, dtype=np.float32).reshape(4, 16) - 30) * np.float32(0.05)
    beside = clear + np.float32(0.025) * (1 + np.float32(2e-7))
    (own,) = baseline.run([clear])
    for _, (moved,) in baseline.disturbances([clear], 0):
        np.testing.assert_allclose(moved, own, rtol=1e-5, atol=1e-6)
    assert max(np.abs(moved - own).max() for _, (moved,) in baseline.disturbances([beside], 0)) > 0.04


@pytest.mark.usefixtures("compilers")
def test_the_nodes_of_a_file_without_a_form_in_pytorch_are_disturbed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Celu", ["x"], ["c"]), helper.make_node("Exp", ["c"], ["y"])]
    onnx.save(graph(*nodes), tmp_path / "smooth.onnx")
    onnx.save(graph(*THERE_AND_BACK), tmp_path / "steps.onnx")
    given = [np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)]
    smooth, steps = (OnnxBaseline(tmp_path / f"{name}.onnx", "") for name in ("smooth", "steps"))
    (own,) = smooth.run(given)
    several = smooth.disturbances(given, 0)
    assert several[0][1][0].tolist() == smooth.disturbances(given, 0)[0][1][0].tolist()
    for times, (moved,) in several:
        assert 0 < np.abs(moved - own).max() < times * 1e-6 * np.abs(own).max()
    edge = [np.full((4, 16), 0.025 * (1 + 2e-7), np.float32)]
    assert max(np.abs(moved - steps.run(edge)[0]).max() for _, (moved,) in steps.disturbances(edge, 0)) > 0.04


def test_a_number_falls_to_the_other_side_of_a_step_also_where_one_before_it_did_not() -> None:
    """Both lie beside a step; where the first falls to the other side the second is away from there."""
    baseline = ModuleBaseline(TwoSteps().eval())
    given = np.full((1, 2), 0.4999, np.float32)
    assert baseline.run([given])[0].item() == 0.0
    assert 1.0 in [moved.item() for _, (moved,) in baseline.disturbances([given], 0)]


class Stepped(nn.Module):
    """Small elements beside large ones; all of them are whole numbers where it rounds."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.cat([1000.0 * torch.round(given[:, :2]), given[:, 2:]], 1)


def test_small_elements_are_not_compared_by_themselves_where_a_step_decides() -> None:
    clear, tied = (np.full((2, 8), number, np.float32) for number in (0.9, 0.5))
    bands_ = [np.array([0, 0, 2, 2, 2, 2, 2, 2], np.int8)]
    for given, judged in ((clear, True), (tied, False)):
        baseline = ModuleBaseline(Stepped().eval())
        trial, _ = observed(baseline, 0, "normal", [given], baseline.run([given]), bands_)
        assert bool(trial.small[0]) is judged


class Chaotic(ModuleBaseline):
    """Its disturbances show the first two times nothing of what rounding does."""

    drawn = 0

    def exact(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return [-inputs[0].astype(np.float64)]

    def disturbances(self, inputs: Sequence[NDArray[Any]], seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        self.drawn += 1
        return [(1.0, [inputs[0] * np.float32(1 if self.drawn < 3 else -1)])]


def test_disturbances_are_drawn_again_before_double_precision_is_doubted() -> None:
    given = [np.ones((2, 3), np.float32)]
    trial, _ = observed(Chaotic(nn.Identity()), 0, "normal", given, given, [None])
    assert not trial.unchecked
    assert trial.rounding[0] is not None
    assert not trial.rounding[0].tells


class Branching(nn.Module):
    """Computes one of two branches of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(100, 4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            linear = self.linear(x)
        return torch.cond(x.sum() > 0, lambda y: y.exp() * 2.0, lambda y: y - 1.0, (linear,))


@pytest.mark.parametrize("exported", [False, True])
def test_branches_of_a_graph_are_computed_in_other_arithmetic(exported: bool) -> None:
    module, x = Branching().eval(), torch.rand(2, 100)
    linear = module.linear
    wide = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double()).exp() * 2.0
    baseline = ModuleBaseline(torch.export.export(module, (x,)).module() if exported else module)
    given = [x.numpy()]
    (before,) = baseline.run(given)
    (exact,) = baseline.exact(given)
    np.testing.assert_allclose(exact, wide.detach().numpy(), rtol=1e-14)
    others = [outputs[0] for _, outputs in baseline.disturbances(given, 0)]
    assert all((other != before).any() for other in others)
    np.testing.assert_allclose(others, np.stack([exact] * len(others)), rtol=1e-4)
    np.testing.assert_array_equal(baseline.run(given)[0], before)


def test_loops_of_a_graph_are_computed_in_other_arithmetic() -> None:
    class Looping(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y.exp()), (torch.tensor(0), x))[1]

    x = torch.rand(2, 3)
    (exact,) = ModuleBaseline(Looping()).exact([x.numpy()])
    np.testing.assert_allclose(exact, x.double().exp().exp().exp().numpy(), rtol=1e-14)


class WritesItsWeights(nn.Module):
    """Masks its weights in each call, as PixelCNN does, in place or by setting them."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.linear, self.in_place = nn.Linear(8, 8), in_place
        self.register_buffer("mask", torch.ones(8, 8).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_place:
            self.linear.weight.data *= self.mask
        else:
            self.linear.weight.data = self.linear.weight.data * self.mask
        return self.linear(x)


@pytest.mark.parametrize("in_place", [True, False])
def test_verifying_changes_no_weights(in_place: bool) -> None:
    module, given = WritesItsWeights(in_place).eval(), [np.ones((2, 8), np.float32)]
    baseline = ModuleBaseline(module)
    baseline.run(given)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    baseline.exact(given)
    baseline.disturbances(given, 0)
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == before[name].dtype
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_the_smallest_number_that_a_model_adds_is_that_of_its_own_type() -> None:
    class Eps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 0 + torch.finfo(x.dtype).eps).log()

    (exact,) = ModuleBaseline(Eps()).exact([np.ones((2, 3), np.float32)])
    np.testing.assert_allclose(exact, np.log(float(np.finfo(np.float32).eps)), rtol=1e-12)


def test_a_sample_that_overflows_in_the_model_alone_leaves_the_others_to_judge() -> None:
    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1e19 * 1e19 / 1e38

    given = np.array([[10.0, 20.0], [0.1, 0.3]], np.float32)
    baseline = ModuleBaseline(Product())
    (native,) = baseline.run([given])
    trial, exact = observed(baseline, 0, "mixed scales", [given], [native], [None])
    assert np.isinf(native[0]).all()
    assert not trial.unchecked
    assert exact is not None
    right = exact[0].astype(np.float32)
    fine, wrong = (
        parity.judge(array, native, exact[0], trial.rounding[0], "fp32")
        for array in (right, right * np.array([[1], [1.01]], np.float32))
    )
    assert fine is not None
    assert wrong is not None
    assert not fine.problem
    assert wrong.problem


@pytest.mark.parametrize("shape", [(0,), (0, 4), (2, 0), ()])
def test_an_output_of_any_shape_is_judged(shape: tuple[int, ...]) -> None:
    class Shaped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() * torch.ones(shape)

    given = np.ones((2, 3), np.float32)
    baseline = ModuleBaseline(Shaped())
    trial, exact = observed(baseline, 0, "normal", [given], baseline.run([given]), [None])
    assert not trial.unchecked
    assert exact is not None
    assert exact[0].shape == shape


def test_a_fast_path_that_computes_something_else_is_told() -> None:
    """Zeros where the input is padded."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: torch.Tensor) -> Any:
            padded = torch.arange(x.shape[1]).expand(x.shape[:2]) >= 5
            return self.encoder(x, src_key_padding_mask=padded)

    torch.manual_seed(0)
    baseline = ModuleBaseline(Encoder().eval())
    given = [np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)]
    outputs = baseline.run(given)
    trial, _ = observed(baseline, 0, "normal", given, outputs, [None])
    assert "operation by operation" in trial.unchecked


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x < 0,
        lambda x: x > 0.0,
        lambda x: x > -torch.inf,
        lambda x: x <= torch.tensor(torch.inf),
        torch.floor,
        torch.round,
    ],
)
def test_an_infinity_lies_beside_no_step(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = torch.tensor([-torch.inf, torch.inf, 1.2])
    with AcrossSteps() as mode:
        moved = step(given)
    assert not mode.beside
    assert torch.equal(moved, step(given))


@pytest.mark.usefixtures("compilers")
def test_an_infinity_lies_beside_no_step_of_a_file(tmp_path: Path) -> None:
    nodes = [helper.make_node("Greater", ["x", "s"], ["y"])]
    onnx.save(graph(*nodes, kind=TensorProto.BOOL), tmp_path / "above.onnx")
    baseline = OnnxBaseline(tmp_path / "above.onnx", "")
    given = [np.full((4, 16), 1.2, np.float32)]
    given[0][:, :4], given[0][:, 4:8] = np.inf, -np.inf
    (own,) = baseline.run(given)
    for _, (moved,) in baseline.disturbances(given, 0):
        np.testing.assert_array_equal(moved, own)


class Counted(nn.Module):
    def __init__(self, count: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count(x)


@pytest.mark.usefixtures("compilers")
def test_which_of_equal_numbers_of_a_file_comes_first_is_left_to_each_compiler(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", TensorProto.INT64, [1], [16])),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("TopK", ["r", "k"], ["v", "i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    onnx.save(graph(*nodes), tmp_path / "order.onnx")
    baseline = OnnxBaseline(tmp_path / "order.onnx", "")
    given = [np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)]
    (own,) = baseline.run(given)
    clear = (given[0] > 0).sum(1)
    for _, (moved,) in baseline.disturbances(given, 0):
        assert (moved != own).any()
        for row, count in enumerate(clear):
            np.testing.assert_array_equal(moved[row, :count], own[row, :count])


@pytest.mark.parametrize("kind", ["int64", "bool", "float32"])
@pytest.mark.parametrize(
    "count",
    [
        lambda mask: 1.0 - mask.float(),
        lambda mask: (1.0 - mask.float()).bool(),
        lambda mask: mask.float().sum(-1).long() - 1,
        lambda mask: (mask.float() * 8.0).cumsum(-1).int(),
        lambda mask: (mask.float() * torch.arange(16.0)).sum(-1).to(torch.int32),
        lambda mask: mask.float().sum(-1) > 8,
        lambda mask: mask.float().cumsum(-1) % 4,
        lambda mask: mask.float().cumsum(-1) // 4,
        lambda mask: torch.div(mask.float().cumsum(-1), 3, rounding_mode="trunc").long(),
        lambda mask: torch.floor(torch.arange(16.0) / 2) + mask,
        lambda mask: torch.ceil(torch.round(mask.float().cumsum(-1) * 0.28)),
    ],
)
def test_whole_numbers_are_exact_in_any_arithmetic(count: Callable[[torch.Tensor], torch.Tensor], kind: str) -> None:
    """Masks, lengths, indices and bins."""
    baseline = ModuleBaseline(Counted(count))
    given = [(np.random.default_rng(0).random((4, 16)) < 0.6).astype(kind)]
    (own,) = baseline.run(given)
    for _, (moved,) in baseline.disturbances(given, 0):
        np.testing.assert_array_equal(moved, own)


@pytest.mark.usefixtures("compilers")
def test_truth_values_of_a_file_become_exact_numbers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "s"], ["g"]),
        helper.make_node("Cast", ["g"], ["y"], to=TensorProto.FLOAT),
    ]
    onnx.save(graph(*nodes), tmp_path / "mask.onnx")
    baseline = OnnxBaseline(tmp_path / "mask.onnx", "")
    given = [np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)]
    (own,) = baseline.run(given)
    for _, (moved,) in baseline.disturbances(given, 0):
        np.testing.assert_array_equal(moved, own)


@pytest.mark.parametrize(
    "chosen",
    [
        lambda x: x.topk(3),
        lambda x: x.sort(-1, descending=True),
        lambda x: x.kthvalue(8, keepdim=True),
        lambda x: x.median(-1),
        lambda x: x.bool().sort(0),
    ],
)
def test_which_of_equal_whole_numbers_comes_first_is_left_to_each_compiler(
    chosen: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(chosen(x))

    baseline = ModuleBaseline(Chosen())
    given = [np.random.default_rng(0).integers(0, 3, (4, 16))]
    values, places = baseline.run(given)
    several = [outputs for times, outputs in baseline.disturbances(given, 0) if times != 1.0]
    assert all((other == values).all() for other, _ in several)
    assert any((other != places).any() for _, other in several)


def test_the_first_of_equal_whole_numbers_is_promised_by_some() -> None:
    baseline = ModuleBaseline(Counted(lambda x: torch.cat([x.argmax(-1), x.min(-1).indices])))
    given = [np.random.default_rng(0).integers(0, 3, (4, 16))]
    (own,) = baseline.run(given)
    for _, (moved,) in baseline.disturbances(given, 0):
        np.testing.assert_array_equal(moved, own)


@pytest.mark.parametrize(
    "quantise",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127),
        lambda x: torch.fake_quantize_per_tensor_affine(
            x, torch.tensor([0.05]), torch.tensor([0], dtype=torch.int32), -128, 127
        ),
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.tensor([0.05, 0.05]), torch.zeros(2, dtype=torch.int32), 1, -128, 127
        ),
        lambda x: torch.quantize_per_tensor(x, 0.05, 0, torch.qint8).dequantize(),
    ],
)
def test_a_quantised_number_falls_to_the_other_side_of_a_step(quantise: Callable[[torch.Tensor], torch.Tensor]) -> None:
    beside, clear = torch.full((1, 2), 0.025 * (1 + 2e-7)), torch.full((1, 2), 0.06)
    with torch.no_grad(), AcrossSteps() as mode:
        moved, stays = quantise(beside), quantise(clear)
    assert mode.beside == [0]
    assert (moved - quantise(beside)).abs().max() > 0.04
    assert torch.equal(stays, quantise(clear))


def test_a_number_that_underflows_is_no_other_function() -> None:
    class Likelihood(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x.sum()).squeeze()

    given = [np.full((1, 8), -13.0, np.float32)]
    baseline = ModuleBaseline(Likelihood())
    trial, _ = observed(baseline, 0, "huge", given, baseline.run(given), [None])
    assert not trial.unchecked


def test_a_number_that_may_be_zero_is_so_before_its_logarithm() -> None:
    baseline = ModuleBaseline(Counted(lambda x: torch.log(torch.exp(x))))
    given = [np.full((2, 3), -90.0, np.float32)]
    outputs = baseline.run(given)
    assert np.isfinite(outputs[0]).all()
    trial, _ = observed(baseline, 0, "large", given, outputs, [None])
    assert trial.rounding[0] is not None
    assert not trial.rounding[0].tells
