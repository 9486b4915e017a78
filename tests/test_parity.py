"""Parity catches what rounding does not explain, and lets pass what it does."""

from __future__ import annotations

import re
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_ngraph import parity, sample_arrays
from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.parity import TOLERANCES

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/parity.md"
PRECISIONS = sorted(TOLERANCES)
BITS = {"fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7}
"""Of the fraction of each format."""
SEEDS = st.integers(0, 2**32 - 1)


def outputs(seed=0, shape=(4, 10)):
    return [np.random.default_rng(seed).standard_normal(shape).astype(np.float32)]


def verdict(ours, theirs, precision="fp32"):
    return parity.problem(parity.compare(ours, theirs), precision)


def rounded(array, bits):
    """``array`` with a shorter fraction, to nearest even."""
    whole, drop = array.view(np.int32), 23 - bits
    if drop == 0:
        return array
    shifted = whole + (1 << (drop - 1)) - 1 + ((whole >> drop) & 1)
    return (shifted & ~((1 << drop) - 1)).view(np.float32)


def product(image, weight, bits):
    """A layer as the format computes it: rounded operands, sums in fp32."""
    return np.maximum(rounded(image, bits) @ rounded(weight, bits), 0)


def test_equal_outputs_are_perfect():
    found = parity.compare(outputs(), outputs())
    assert (found.max_abs, found.max_rel, found.top1, found.integers) == (0.0, 0.0, 1.0, 1.0)
    assert found.cosine == pytest.approx(1.0)
    assert parity.problem(found, "fp32") is None


@pytest.mark.parametrize("scale", [1e300, 1e199, 1e-170, 1e-310])
def test_a_cosine_does_not_depend_on_how_large_outputs_are(scale):
    reference = np.random.default_rng(0).standard_normal((4, 9))
    assert parity.problem(parity.compare([scale * reference], [scale * reference]), "fp32") is None
    turned = reference[:, ::-1]
    same = parity.compare([turned], [reference]).cosine
    assert parity.compare([scale * turned], [scale * reference]).cosine == pytest.approx(same, abs=1e-9)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0, 2), (0,)])
def test_outputs_without_elements_are_equal(shape):
    assert parity.compare([np.zeros(shape)], [np.zeros(shape)]) == parity.EXACT


def test_rounding_passes_and_a_wrong_sample_fails():
    theirs = outputs()
    assert verdict([theirs[0] * np.float32(1 + 1e-6)], theirs) is None
    wrong = theirs[0].copy()
    wrong[2] = wrong[2][::-1]
    found = parity.compare([wrong], theirs)
    assert "cosine" in (parity.problem(found, "fp32") or "")
    assert found.top1 <= 0.75


@pytest.mark.parametrize("shape", [(1, 1000), (4, 7), (8, 3, 5, 5), (2, 1), (6,)])
@pytest.mark.parametrize("precision", PRECISIONS)
@given(seed=SEEDS)
def test_the_tolerance_is_the_border(precision, shape, seed):
    """One element is off by a share of the largest value: just less passes, just more does not."""
    theirs = outputs(seed, shape)[0].astype(np.float64)
    at = np.unravel_index(np.abs(theirs).argmax(), shape)
    for share, passes in ((0.95, True), (1.05, False)):
        ours = theirs.copy()
        # Away from zero along the vector's longest component, which turns the vector least: the cosine stays out of it.
        ours[at] *= 1 + share * TOLERANCES[precision].max_rel
        found = verdict([ours], [theirs], precision)
        assert (found is None) is passes, found
        if not passes:
            assert "relative error" in found


@pytest.mark.parametrize("precision", PRECISIONS)
@given(seed=SEEDS)
def test_a_turned_sample_is_caught_however_small_its_errors(precision, seed):
    """A sample with small outputs beside one with large ones: only its direction shows that it is wrong."""
    rng = np.random.default_rng(seed)
    theirs = np.stack([1e6 * rng.standard_normal(100), rng.standard_normal(100)])
    aside = rng.standard_normal(100)
    aside -= theirs[1] * (aside @ theirs[1]) / (theirs[1] @ theirs[1])
    aside *= np.linalg.norm(theirs[1]) / np.linalg.norm(aside)
    angle = np.arccos(TOLERANCES[precision].cosine)
    for share, passes in ((0.95, True), (1.05, False)):
        ours = theirs.copy()
        ours[1] = np.cos(share * angle) * theirs[1] + np.sin(share * angle) * aside
        found = verdict([ours], [theirs], precision)
        assert (found is None) is passes, found
        if not passes:
            assert "cosine" in found


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=20)
@given(seed=SEEDS)
def test_a_format_passes_its_own_tolerance_and_fails_that_of_fp32(precision, depth, seed):
    rng = np.random.default_rng(seed)
    ours = theirs = rng.standard_normal((4, 256)).astype(np.float32)
    for _ in range(depth):
        weight = (rng.standard_normal((256, 256)) / 11).astype(np.float32)
        ours, theirs = product(ours, weight, BITS[precision]), product(theirs, weight, 23)
    assert verdict([ours], [theirs], precision) is None
    assert (verdict([ours], [theirs], "fp32") is None) is (precision == "fp32")


def test_a_coarser_format_has_the_wider_tolerance():
    ranked = [TOLERANCES[name] for name in ("fp32", "tf32", "fp16", "bf16")]
    for finer, coarser in pairwise(ranked):
        assert finer.cosine > coarser.cosine
        assert finer.max_rel < coarser.max_rel


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_not_a_number_fails(bad, precision):
    wrong = outputs()[0].copy()
    wrong[0, 0] = bad
    assert verdict([wrong], outputs(), precision) is not None
    assert verdict(outputs(), [wrong], precision) is not None


def test_a_sample_that_has_no_answer_has_none_in_the_engine_too():
    theirs = outputs()[0].copy()
    theirs[2] = np.nan
    assert verdict([theirs.copy()], [theirs]) is None
    wrong = theirs.copy()
    wrong[1, 0] *= 1.1
    assert verdict([wrong], [theirs]) is not None


def test_a_small_sample_is_judged_by_its_own_size():
    theirs = np.concatenate([outputs(1)[0], outputs(2)[0] * 0.02])
    wrong = theirs.copy()
    wrong[-1, 0] += 1e-4
    assert verdict([wrong], [theirs]) is not None


def test_both_parts_of_complex_outputs_count():
    theirs = (outputs(1)[0] + 1j * outputs(2)[0]).astype(np.complex64)
    assert verdict([theirs.copy()], [theirs]) is None
    assert verdict([theirs.conj()], [theirs]) is not None


def test_outputs_of_no_elements_are_equal():
    assert verdict([np.zeros((4, 0), np.float32)], [np.zeros((4, 0), np.float32)]) is None


@given(st.floats(0, 1e6))
def test_inputs_tell_less_the_coarser_the_precision(amplification):
    allowed = parity.Rounding(amplification * parity.UNIT_ROUNDOFF["fp32"], 0.0)
    told = [parity.tells(allowed, outputs()[0], name) for name in ("fp32", "tf32", "bf16")]
    if told[0] is False:
        assert not any(told)


def test_an_infinity_that_the_model_means_has_to_be_in_the_engine_too():
    masked = outputs()[0].copy()
    masked[:, 3] = -np.inf
    assert verdict([masked], [masked.copy()]) is None
    assert verdict([np.where(np.isinf(masked), -1e30, masked)], [masked], "bf16") is not None
    assert verdict([-masked], [masked], "bf16") is not None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_zero_outputs_fail(precision):
    assert verdict([np.zeros((4, 10), np.float32)], outputs(), precision) is not None
    assert verdict(outputs(), [np.zeros((4, 10), np.float32)], precision) is not None


def test_zeros_equal_zeros():
    assert verdict([np.zeros((4, 10))], [np.zeros((4, 10))]) is None


def test_the_worst_of_several_outputs_counts():
    good, bad = outputs(1)[0], outputs(2)[0]
    found = parity.compare([good, -bad], [good, bad])
    assert found.cosine == pytest.approx(-1.0)
    broken = np.full_like(bad, np.nan)
    assert verdict([broken, good], [bad, good], "bf16") is not None
    assert verdict([good, broken], [good, bad], "bf16") is not None


def test_the_sign_of_a_single_number_near_zero_is_rounding():
    theirs = np.array([[1.0], [1e-9]])
    assert verdict([np.array([[1.0], [-1e-9]])], [theirs]) is None
    assert verdict([np.array([[-1.0], [1e-9]])], [theirs], "bf16") is not None


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_integer_outputs_are_exact(precision, dtype):
    theirs = np.random.default_rng(0).integers(0, 2, (4, 1000)).astype(dtype)
    assert verdict([theirs], [theirs.copy()], precision) is None
    wrong = theirs.copy()
    wrong[3, 7] = not wrong[3, 7]
    assert verdict([wrong], [theirs], precision) == "0.025 % of the integer outputs differ"


def test_a_label_beside_its_neighbour_is_no_rounding():
    """However small the difference is beside the largest label, and beside other outputs that are right."""
    labels, scores = np.array([[30_000], [7]]), outputs()[0]
    assert verdict([labels, scores], [labels, scores], "bf16") is None
    assert "integer" in (verdict([labels + np.array([[1], [0]]), scores], [labels, scores], "bf16") or "")


def test_missing_outputs_wrong_shapes_and_other_types_are_named():
    with pytest.raises(IncomparableError, match="1 outputs, the model 2"):
        parity.compare(outputs(), outputs() * 2)
    with pytest.raises(IncomparableError, match=r"output 0 has shape \(4, 5\)"):
        parity.compare(outputs(shape=(4, 5)), outputs())
    with pytest.raises(IncomparableError, match="output 1 is float16, the model's is float32"):
        parity.compare([*outputs(), outputs()[0].astype(np.float16)], outputs() * 2)
    with pytest.raises(IncomparableError, match="output 0 is int32, the model's is int64"):
        parity.compare([np.ones((4, 1), np.int32)], [np.ones((4, 1), np.int64)])


def test_the_tolerances_are_those_of_the_reference():
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\de.-]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert {name: (float(cosine), float(error)) for name, cosine, error in rows} == {
        name: (tolerance.cosine, tolerance.max_rel) for name, tolerance in TOLERANCES.items()
    }


@pytest.mark.parametrize(("model", "shape"), [("cnn", (4, 3, 16, 16)), ("two_headed", None)])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_a_network_in_another_precision_fails_the_tolerance_of_fp32(model, shape, precision, dtype):
    torch = pytest.importorskip("torch")
    from mlflow_ngraph_testing import models

    torch.manual_seed(0)
    network = getattr(models, model)().eval()
    inputs = [torch.randn(shape)] if shape else [torch.randn(4, 12), torch.randn(4, 4, 6)]

    def computed(module, given):
        with torch.no_grad():
            made = module(*given)
        return [tensor.float().numpy() for tensor in (made if isinstance(made, tuple) else (made,))]

    theirs = computed(network, inputs)
    short = getattr(torch, dtype)
    ours = computed(network.to(short), [tensor.to(short) for tensor in inputs])
    assert verdict(ours, theirs, precision) is None
    assert verdict(ours, theirs, "fp32") is not None


def test_infinities_of_the_other_sign_are_wrong() -> None:
    truth = np.array([[np.inf, 1.0]])
    native = truth.astype(np.float32)
    right, wrong = native.copy(), np.array([[-np.inf, 1.0]], np.float32)
    allowed = parity.Rounding(1e-7, 1e-7)
    assert parity.beyond(parity.errors(right, truth, native), allowed) is None
    assert parity.beyond(parity.errors(wrong, truth, native), allowed) is not None


@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min), -1e4])
def test_what_is_put_in_the_place_of_numbers_hides_no_error_of_others(fill: float) -> None:
    truth = np.array([[fill, 1 / 3, -5 / 3], [2 / 3, fill, 1 / 7]])
    native = truth.astype(np.float32)
    native[:, -1] *= np.float32(1 + 1e-7)
    wrong = native.copy()
    wrong[0, 1] += np.float32(0.01)
    assert parity.errors(native, truth, native).largest < 1e-6
    assert parity.errors(wrong, truth, native).largest > 1e-3
    other = native.copy()
    other[0, 0] /= 2
    assert parity.errors(other, truth, native).largest >= 0.5


def test_a_saturated_number_is_no_fill() -> None:
    truth = np.array([[1.0, 1e-9 / 3]])
    assert not parity.fills(truth, truth.astype(np.float32)).any()


def test_integers_that_ties_decide_tell_nothing() -> None:
    assert parity.Rounding(0.0, 0.0, 0.1).tells
    assert not parity.Rounding(0.0, 0.0, 0.5).tells


def test_what_is_smaller_than_a_normal_number_may_be_zero() -> None:
    truth = np.array([[3e-42], [1e-39]])
    native = truth.astype(np.float32)
    flushed, wrong = np.zeros_like(native), np.full_like(native, 1e-36)
    assert parity.errors(flushed, truth, native) == parity.Rounding(0.0, 0.0)
    assert verdict([flushed], [native]) is None
    assert parity.errors(wrong, truth, native).largest > 1.0
    assert verdict([wrong], [native]) is not None


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 5), st.integers(1, 9), st.integers(1, 20), st.sampled_from((np.float16, np.float32)))
def test_how_many_numbers_are_compared_at_once_changes_nothing(seed, samples, width, at_once, dtype):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((samples, width)) * 10 ** rng.uniform(-3, 3)
    native = truth.astype(dtype)
    ours = native * (1 + rng.standard_normal(native.shape) / 100).astype(dtype)
    for array in (truth, native, ours)[: rng.integers(4)]:
        array[rng.random(native.shape) < 0.2] = rng.choice([np.inf, np.nan, 0.0, -6e4])

    def found():
        return [*astuple(parity.errors(ours, truth, native)), *astuple(parity.compare([ours], [native]))]

    at_once_all = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_arrays, "_AT_ONCE", at_once)
        assert found() == pytest.approx(at_once_all, rel=1e-12, nan_ok=True)
