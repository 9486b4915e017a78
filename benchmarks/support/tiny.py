"""Models whose inference takes microseconds, as factories of ``torch:`` workloads."""

from __future__ import annotations

from torch import nn

INPUTS = {
    "linear": ["batch", 16],
    "perceptron": ["batch", 32],
    "convolution": ["batch", 3, 8, 8],
    "normalised": ["batch", 4, 16],
}
"""The shape of the only input of each."""


def linear() -> nn.Module:
    """One matrix product."""
    return nn.Linear(16, 8)


def perceptron() -> nn.Module:
    """Two matrix products with an activation between them."""
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def convolution() -> nn.Module:
    """One convolution over a few pixels."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten())


def normalised() -> nn.Module:
    """What stands between the layers of a transformer."""
    return nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16))
