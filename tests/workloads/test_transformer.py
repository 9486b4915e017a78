"""The text encoder: every input matters, and the studies that use it know its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_ngraph.study import load
from mlflow_ngraph.workloads.base import Init
from mlflow_ngraph.workloads.registry import create

torch = pytest.importorskip("torch")

from mlflow_ngraph.workloads.transformer import LENGTH, TYPES, WORDS, encoder  # noqa: E402 - imports torch


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return encoder().eval()


@pytest.fixture(scope="module")
def text():
    rng = np.random.default_rng(0)
    tokens, types = rng.integers(0, WORDS, (2, LENGTH)), rng.integers(0, TYPES, (2, LENGTH))
    mask = np.ones((2, LENGTH), np.int64)
    mask[:, LENGTH // 2 :] = 0
    return [torch.from_numpy(array) for array in (tokens, mask, types)]


def test_words_and_a_summary(model, text) -> None:
    words, summary = model(*text)
    assert (tuple(words.shape), tuple(summary.shape)) == ((2, LENGTH, 256), (2, 256))


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_every_input_matters(model, text, changed: int) -> None:
    other = [array.clone() for array in text]
    other[changed][:, 0] = 1 - other[changed][:, 0]
    if changed == 0:
        other[changed][:, 0] = (text[0][:, 0] + 1) % WORDS
    assert not torch.allclose(model(*text)[1], model(*other)[1], atol=1e-3)


def test_the_order_of_the_words_matters(model, text) -> None:
    tokens, mask, types = text
    assert not torch.allclose(model(tokens.roll(1, 1), mask, types)[1], model(tokens, mask, types)[1], atol=1e-3)


def test_masked_words_are_not_seen(model, text) -> None:
    tokens, mask, types = text
    other = torch.where(mask == 0, (tokens + 7) % WORDS, tokens)
    torch.testing.assert_close(model(other, mask, types)[1], model(tokens, mask, types)[1])


@pytest.mark.parametrize("name", ["compiler-matrix", "compiler-matrix-bf16"])
def test_the_studies_stay_within_its_bounds(name: str) -> None:
    (choice,) = [choice for choice in load(name).workloads if choice.ref.startswith("torch:")]
    tokens, mask, types = create(choice.parsed(), Init()).inputs()
    assert [spec.shape for spec in (tokens, mask, types)] == [("batch", LENGTH)] * 3
    assert (tokens.high, mask.high, types.high) == (WORDS, 2, TYPES)
    assert {spec.dtype for spec in (tokens, mask, types)} == {"int64"}
