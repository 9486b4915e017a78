import numpy as np
import pytest

from mlflow_ngraph.measure import parity


def outputs(seed=0, shape=(4, 10)):
    return [np.random.default_rng(seed).standard_normal(shape).astype(np.float32)]


def test_equal_outputs_are_perfect():
    found = parity.compare(outputs(), outputs())
    assert (found.max_abs, found.max_rel, found.top1) == (0.0, 0.0, 1.0)
    assert found.cosine == pytest.approx(1.0)
    assert parity.problem(found, "fp32") is None


def test_rounding_passes_and_a_wrong_sample_fails():
    theirs = outputs()
    assert parity.problem(parity.compare([theirs[0] * (1 + 1e-6)], theirs), "fp32") is None
    wrong = theirs[0].copy()
    wrong[2] = wrong[2][::-1]
    found = parity.compare([wrong], theirs)
    assert "cosine" in (parity.problem(found, "fp32") or "")
    assert found.top1 <= 0.75


def test_bf16_tolerance_is_wider_than_fp32():
    theirs = outputs(shape=(4, 1000))
    noisy = theirs[0] + 0.01 * np.random.default_rng(1).standard_normal(theirs[0].shape).astype(np.float32)
    found = parity.compare([noisy], theirs)
    assert parity.problem(found, "fp32") is not None
    assert parity.problem(found, "bf16") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_a_number_fails(bad):
    wrong = outputs()[0].copy()
    wrong[0, 0] = bad
    assert parity.problem(parity.compare([wrong], outputs()), "bf16") is not None


def test_all_zero_outputs_fail():
    assert parity.problem(parity.compare([np.zeros((4, 10), np.float32)], outputs()), "bf16") is not None


def test_the_worst_of_several_outputs_counts():
    good, bad = outputs(1)[0], outputs(2)[0]
    found = parity.compare([good, -bad], [good, bad])
    assert found.cosine == pytest.approx(-1.0)


def test_integer_outputs_compare_by_value():
    labels = np.array([[3], [7]])
    assert parity.problem(parity.compare([labels], [labels]), "fp32") is None
    assert parity.problem(parity.compare([labels + 1], [labels]), "fp32") is not None


def test_missing_outputs_and_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="1 outputs, the model 2"):
        parity.compare(outputs(), outputs() * 2)
    with pytest.raises(ValueError, match=r"output 0 has shape \(4, 5\)"):
        parity.compare(outputs(shape=(4, 5)), outputs())
