"""Small models with features that adapters stumble over. Each is a factory for the ``torch:`` scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

WORDS = 50
"""Size of the vocabulary of `text_encoder`."""

INPUTS: Mapping[str, list[dict[str, Any]]] = {
    "cnn": [{"name": "image", "shape": ["batch", 3, 16, 16]}],
    "two_headed": [{"name": "left", "shape": ["batch", 12]}, {"name": "right", "shape": ["batch", 4, 6]}],
    "text_encoder": [
        {"name": "tokens", "shape": ["batch", 10], "dtype": "int64", "high": WORDS},
        {"name": "mask", "shape": ["batch", 10], "dtype": "int64"},
    ],
    "parallel": [{"name": "image", "shape": ["batch", 3, 16, 16]}],
    "perceptron": [{"name": "input", "shape": ["batch", 16]}],
    "fixed_batch": [{"name": "input", "shape": [3, 8]}],
    "unknown_operator": [{"name": "input", "shape": ["batch", 4]}],
}
"""The inputs of each model, as the ``torch:`` scheme wants them."""


def cnn() -> nn.Module:
    """Convolutions with batch normalisation around a residual connection."""
    from torch import nn

    from mlflow_ngraph_testing.torch_models import Residual

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def parallel() -> nn.Module:
    """Parallel convolutions, a choice by ``where``, and a residual connection."""
    from mlflow_ngraph_testing.torch_models import Parallel

    return Parallel()


def perceptron() -> nn.Module:
    """Three layers with activations that have no upper bound."""
    from torch import nn

    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 5))


def two_headed() -> nn.Module:
    """Two inputs of different rank and two outputs of different shape."""
    from mlflow_ngraph_testing.torch_models import TwoHeaded

    return TwoHeaded()


def text_encoder() -> nn.Module:
    """Integer tokens and an integer mask through an embedding and attention."""
    from mlflow_ngraph_testing.torch_models import TextEncoder

    return TextEncoder(WORDS)


def fixed_batch() -> nn.Module:
    """A perceptron that is given one batch size only. A mebibyte of weights, so that it is missed when it leaks."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 3))


def unknown_operator() -> nn.Module:
    """A model around an operator that only this package's own Python code knows."""
    from mlflow_ngraph_testing.torch_models import Unknown

    return Unknown()
