"""A BERT-like text encoder: integer inputs, a mask, and two outputs. Imports torch."""

from __future__ import annotations

import torch
from torch import nn

WORDS = 8192
"""Size of the vocabulary: what a study gives as the upper bound of ``tokens``."""
LENGTH = 64
"""Most words that a text may have."""
TYPES = 2
"""Segments of a text, such as question and answer."""


def encoder(layers: int = 4, width: int = 256, heads: int = 4) -> nn.Module:
    """Factory for the ``torch:`` scheme. The inputs are int64 matrices of one row a text.

    ``tokens`` are below `WORDS`, ``mask`` is 1 where there is a word, and ``types`` are below `TYPES`.
    """
    return TextEncoder(layers, width, heads)


class Layer(nn.Module):  # type: ignore[misc]
    """Masked self-attention and a perceptron, each added to its input and normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.attended = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.transformed = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._split(part(words)) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        words = self.attended(words + self.out(mixed.transpose(1, 2).flatten(2)))
        return self.transformed(words + self.narrow(nn.functional.gelu(self.wide(words))))

    def _split(self, words: torch.Tensor) -> torch.Tensor:
        return words.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class TextEncoder(nn.Module):  # type: ignore[misc]
    """Embeddings of words, positions and types, attention layers, and a pooled output."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.types = nn.Embedding(TYPES, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.summary = nn.Linear(width, width)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, types: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        words = self.norm(self.words(tokens) + self.positions(positions) + self.types(types))
        visible = mask[:, None, None, :] != 0
        for layer in self.layers:
            words = layer(words, visible)
        return words, torch.tanh(self.summary(words[:, 0]))
