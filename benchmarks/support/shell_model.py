"""A small network of convolutions and of operators that PyTorch computes itself, in vector code that a variable can switch off."""

from __future__ import annotations

import torch

WIDTH = 32


def make() -> torch.nn.Module:
    """The network; its input is an image of 32 x 32."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, WIDTH, 3, padding=1),
        torch.nn.GroupNorm(4, WIDTH),
        torch.nn.GELU(),
        torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        torch.nn.Softmax(1),
        torch.nn.Flatten(),
        torch.nn.LayerNorm(WIDTH * 32 * 32),
        torch.nn.Linear(WIDTH * 32 * 32, 16),
    )
