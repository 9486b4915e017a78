"""PyTorch modules and a custom operator for the factories of `mlflow_ngraph_testing.models`. Imports torch."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):  # type: ignore[misc]
    """A convolution block that is added to its input, and that would be missed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
        )
        norm = self.body[1]
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image + self.body(image)


class Parallel(nn.Module):  # type: ignore[misc]
    """A narrow and a wide branch, a residual one, and a choice between their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.narrow = nn.Conv2d(8, 8, 1)
        self.wide = nn.Conv2d(8, 8, 5, padding=2)
        self.head = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        stem = torch.relu(self.stem(image))
        both = stem + nn.functional.gelu(self.narrow(stem)) + nn.functional.silu(self.wide(stem))
        chosen = torch.where(both > stem, both, 0.5 * both)
        return self.head(chosen.mean((2, 3)))


class TwoHeaded(nn.Module):  # type: ignore[misc]
    """A perceptron over two inputs with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(12, 8)
        self.right = nn.Linear(6, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.tanh(self.left(left))[:, None, :] * self.right(right)
        return self.head(both.mean(1)), both.softmax(-1)


class TextEncoder(nn.Module):  # type: ignore[misc]
    """An embedding, one masked attention layer, and the mean over the words that the mask keeps."""

    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        words = self.words(tokens)
        weight = mask[:, :, None].to(words.dtype)
        scores = self.query(words) @ self.key(words).transpose(1, 2) - 10.0 * (1.0 - weight.transpose(1, 2))
        mixed = self.norm(words + scores.softmax(-1) @ self.value(words))
        return (mixed * weight).sum(1) / (weight.sum(1) + 1.0)


@torch.library.custom_op("ngraph_contract::frobnicate", mutates_args=())  # type: ignore[untyped-decorator]
def frobnicate(tensor: torch.Tensor) -> torch.Tensor:
    """An operator that no compiler has ever heard of."""
    return torch.sin(tensor) * 3.0


@frobnicate.register_fake  # type: ignore[untyped-decorator]
def _(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor)


class Unknown(nn.Module):  # type: ignore[misc]
    """A linear layer behind `frobnicate`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.linear(frobnicate(tensor))
