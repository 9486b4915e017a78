"""The two stackable blocks of the paper's table 5 as modules. Imports torch: for child processes only."""

from __future__ import annotations

import torch
from torch import nn


class ConvBlock(nn.Module):  # type: ignore[misc]
    """3x3 convolution with bias, batch normalisation and ReLU: 9 width^2 + 3 width parameters.

    Maps (batch, width, height, width of the image) to the same shape.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.normalisation = nn.BatchNorm2d(width)
        self.activation = nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(self.normalisation(self.convolution(images)))
        return result


class AttentionBlock(nn.Module):  # type: ignore[misc]
    """Self-attention with a residual connection, normalisation and ReLU: 4 width^2 + 4 width parameters.

    The paper's count leaves no room for parameters of the normalisation. Maps (batch, tokens, width) to itself.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.normalisation = nn.LayerNorm(width, elementwise_affine=False)
        self.activation = nn.ReLU()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        result: torch.Tensor = self.activation(self.normalisation(tokens + attended))
        return result


def conv_stack(width: int, depth: int, stem_channels: int | None = None) -> nn.Module:
    """Stack ``depth`` convolutional blocks, after a convolution from ``stem_channels``, if any."""
    stem = [] if stem_channels is None else [nn.Conv2d(stem_channels, width, 3, padding=1)]
    return nn.Sequential(*stem, *(ConvBlock(width) for _ in range(depth))).eval()


def attention_stack(width: int, depth: int, heads: int) -> nn.Module:
    """Stack ``depth`` attention blocks."""
    return nn.Sequential(*(AttentionBlock(width, heads) for _ in range(depth))).eval()
