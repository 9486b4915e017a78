"""Models whose integers mean something, and a function that gives inputs; as ``torch:tests.workloads.drawn_for:<name>``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

WORDS, PLACES, LENGTH = 97, 16, 7


class Encoder(nn.Module):
    """Tokens, their places, and which of them count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(PLACES, 8)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> torch.Tensor:
        tokens = self.words(input_ids.clone()) + self.places(position_ids)
        return (tokens * attention_mask[..., None]).sum(1)


class Hashed(nn.Module):
    """Takes any integer for an id."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids % WORDS).sum(1)


class Table(nn.Module):
    """Picks rows by position."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(WORDS, 3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows[ids.view(-1)].view(*ids.shape, 3)


def hashed_samples() -> dict[str, NDArray[np.int64]]:
    """Ten samples, drawn."""
    return {"input": np.random.randint(0, 1000, (10, LENGTH))}


def exits() -> None:
    """Ends its process."""
    raise SystemExit("no data here")


def nothing() -> None:
    """Forgets to return."""
