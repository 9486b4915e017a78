"""Small models for tests, also as ``torch:tests.workloads.models:<name>``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

VOCABULARY = 50
NOT_CALLABLE = 3


class Encoder(nn.Module):
    """A small BERT: token and position embeddings, masked self-attention, two outputs in a mapping."""

    def __init__(self, width: int = 16, layers: int = 1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(32, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        penalty = (1.0 - attention_mask[:, None, :].to(hidden.dtype)) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, penalty)
        return {"hidden": hidden, "logits": self.head(torch.tanh(hidden[:, 0]))}


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, hidden: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + penalty
        hidden = self.first(hidden + self.out(torch.softmax(scores, -1) @ value))
        return self.second(hidden + self.down(nn.functional.gelu(self.up(hidden))))


class OnlyBatchTwo(nn.Module):
    """Its export cannot have a dynamic batch size: it behaves differently at two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[0] == 2:
            return self.linear(values)
        return self.linear(values) + 1


class Squeezed(nn.Linear):
    """Gives a number without axes for a single sample."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values).squeeze()


class Extremes(nn.Module):
    """Of all numbers at once, without naming an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (
            self.linear(values) / (1 + values.amax().abs()) + values.amin(keepdim=True) + values.amax(1, keepdim=True)
        )


class DependsOnData(nn.Module):
    """No export at all: a branch depends on the values."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.sum() > 0:
            return values + 1
        return values - 1


class Halved(nn.Linear):
    """A model in half precision."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.half()


class Scratch(nn.Module):
    """Keeps what a state dict leaves out, twice the same parameter, and views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.rand(4), persistent=False)
        both = torch.rand(2, 4)
        self.upper, self.lower = nn.Parameter(both[0]), nn.Parameter(both[1])
        self.tied = self.upper

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values + self.offset) * self.upper * self.lower + self.tied


def image_classifier(channels: int = 4) -> nn.Module:
    """A convolution, a normalisation, and a head."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 5),
    )


def no_module() -> int:
    """Not what a factory is to return."""
    return 3


def failing() -> nn.Module:
    """A factory with a bug."""
    raise ValueError("no such\nweights")


class Masked(nn.Module):
    """Takes a boolean input."""

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, values, values * 2)


class StridedFold(nn.Module):
    """Overlapping windows, transposed as outlook attention leaves them, added up to an image."""

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        batch, heads, places, taps, width = windows.shape
        columns = windows.permute(0, 1, 4, 3, 2).reshape(batch, heads * width * taps, places)
        return nn.functional.fold(columns, (14, 14), 3, padding=1, stride=2) + 1


def strided_fold() -> nn.Module:
    return StridedFold()


class _Cache:
    """Has members, as a decoder's cache does, and is nothing that torch knows."""

    def __init__(self, *layers: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        self._layers = layers

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        return iter(self._layers)


@dataclass
class _Kept:
    values: torch.Tensor
    name: str
    cache: _Cache


class Keeps(nn.Module):
    """Its outputs are a dataclass, with a cache in it, and a tuple of None, a number and a tensor."""

    def forward(self, values: torch.Tensor) -> tuple[_Kept, tuple[None, int, torch.Tensor]]:
        cache = _Cache((values * 2, None), (values[:, :2], None))
        return _Kept(values + 1, "kept", cache), (None, 3, values - 1)


def named(key: str) -> nn.Module:
    """A model that needs a key."""
    if not key.startswith("zqS-"):
        raise ValueError(key)
    return nn.Linear(3, 2)
