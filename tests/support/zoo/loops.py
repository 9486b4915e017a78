"""Modules whose number of steps or whose shapes depend on the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import OWN_LIMITS, fill, plus, put, row, specimen, times

ANY_SHAPE = {"ok", "unsupported", "unverified"}
TEXT: list[dict[str, Any]] = [
    {"name": "tokens", "shape": ["batch", 10], "dtype": "int64", "high": 50},
    {"name": "mask", "shape": ["batch", 10], "dtype": "int64"},
]


@specimen(on=[put(7.5), fill(0.1)], python=True)
class CountedLoop(Vectors):
    def forward(self, x):
        y = self.linear(x)
        for _ in range(int(x.abs().max())):
            y = torch.sin(y) + 0.5
        return y


@specimen(on=[times(50.0), times(0.01)], python=True)
class WhileLoop(Vectors):
    def forward(self, x):
        steps = 0
        while x.norm() > 1.0:
            x = x / 2.0
            steps += 1
        return self.linear(x) + steps


@specimen(on=[times(100.0), times(0.01)], python=True)
class EarlyExit(nn.Module):
    """Deeper layers are for samples of which the earlier ones are not sure."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
            if x.softmax(-1).amax() > 0.9:
                break
        return x


@specimen(on=[times(100.0), times(0.01), put(30.0)], python=True)
class RareExit(nn.Module):
    """Ordinary inputs never leave early."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if bool((x > 20.0).any()):
                return x
            x = torch.tanh(layer(x))
        return x


@specimen(TEXT, on=[fill(1, 1), row(*[1] * 3 + [0] * 7, of=1)], python=True)
class TrimmedText(nn.Module):
    """Works on as many words as the longest text has."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6)

    def forward(self, tokens, mask):
        longest = int(mask.sum(1).max())
        return self.words(tokens[:, : max(longest, 1)]).mean(1)


@specimen(on=[plus(3.0), plus(-0.5)], eager=ANY_SHAPE, script=ANY_SHAPE, export=ANY_SHAPE)
class PositiveOnly(Vectors):
    """As many outputs as there are positive inputs."""

    def forward(self, x):
        return x[x > 0] * 2.0


@specimen(on=[plus(3.0), plus(-3.0)], truth="mixes samples", script=OWN_LIMITS, export=OWN_LIMITS)
class SelectedSum(Vectors):
    """A shape that depends on data, but not that of the output."""

    def forward(self, x):
        return self.linear(x) + x.masked_select(x > 0).sum()


@specimen(on=[fill(1.0), row(1, 1, 2, 2, 3, 3, 4, 4)], truth="mixes samples", python=True)
class UniqueCount(Vectors):
    def forward(self, x):
        return self.linear(x) * x.round().unique().numel()


@specimen(on=[plus(1.0)])
class RowByRow(Vectors):
    """Iterating over a batch depends on no data."""

    def forward(self, x):
        return torch.stack([self.linear(sample) * 2.0 for sample in x])


@specimen(on=[plus(1.0)])
class FixedLoop(Vectors):
    """So does a number of steps that is in the code."""

    def forward(self, x):
        y = self.linear(x)
        for step in range(5):
            y = torch.sin(y) + step
        return y


@specimen(on=[plus(1.0)])
class TrainingBranch(Vectors):
    """Branches on configuration and mode are no branches on data."""

    def __init__(self):
        super().__init__()
        self.depth = 3
        self.norm = None

    def forward(self, x):
        y = self.linear(x)
        if self.training or self.norm is not None:
            return -y
        return y * 2.0 if self.depth > 2 and x.shape[1] == 8 else y
