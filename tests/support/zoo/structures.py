"""Modules with inputs and outputs of every structure, outputs that are somebody else's, and none that depend on inputs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.loops import TEXT
from tests.support.zoo.specimen import fill, plus, specimen, times

PAIR = [{"name": "left", "shape": ["batch", 8]}, {"name": "right", "shape": ["batch", 8]}]
MAY_REFUSE = {"ok", "unsupported", "failed"}


class Named(NamedTuple):
    scores: torch.Tensor
    best: torch.Tensor


@dataclass
class Record:
    scores: torch.Tensor
    hidden: torch.Tensor


@specimen(on=[plus(1.0)])
class DictOutput(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return {"scores": y, "shares": y.softmax(-1)}


@specimen(on=[plus(1.0)])
class OrderOutput(Vectors):
    """Keys in an order that is not that of the alphabet."""

    def forward(self, x):
        y = self.linear(x)
        return OrderedDict(zulu=y, alpha=-y, mike=y * 2.0)


@specimen(on=[plus(1.0)])
class ListOutput(nn.Module):
    """A list, with dropout and batch normalisation that evaluation mode must have reached."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))

    def forward(self, x):
        y = self.body(x)
        return [y, [y * 2.0, {"deep": y + 1.0}]]


@specimen(on=[plus(1.0)])
class NamedOutput(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return Named(y, y.argmax(1))


@specimen(on=[plus(1.0)], eager=MAY_REFUSE, script=MAY_REFUSE, export=MAY_REFUSE)
class RecordOutput(Vectors):
    """A dataclass that nobody has registered."""

    def forward(self, x):
        y = self.linear(x)
        return Record(y, x * 2.0)


@specimen(on=[plus(1.0)])
class MixedOutput(Vectors):
    """Beside tensors there are None, a text and a number."""

    def forward(self, x):
        return {"scores": self.linear(x), "loss": None, "task": "rank", "version": 3}


@specimen(on=[plus(1.0)], python=True, eager=MAY_REFUSE)
class NumberOutput(Vectors):
    """One of its outputs is a number of Python that depends on the data."""

    def forward(self, x):
        return {"scores": self.linear(x), "peak": x.max().item()}


@specimen(
    on=[plus(1.0)],
    eager=MAY_REFUSE | {"unverified"},
    script=MAY_REFUSE | {"unverified"},
    export=MAY_REFUSE | {"unverified"},
)
class EmptyOutput(Vectors):
    def forward(self, x):
        return self.linear(x), x[:, :0]


@specimen(on=[plus(1.0)])
class ReturnsInput(Vectors):
    def forward(self, x):
        return self.linear(x), x


@specimen(on=[plus(1.0)])
class OnlyInput(nn.Module):
    def forward(self, x):
        return x


@specimen(on=[plus(1.0)])
class ReturnsView(Vectors):
    def forward(self, x):
        return x[:, 2:6], x.reshape(-1, 2, 4).transpose(1, 2)


@specimen(on=[plus(1.0)])
class SameTwice(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return y, y


@specimen(on=[plus(1.0)])
class ReturnsParameter(Vectors):
    """One output is constant, the other is not."""

    def forward(self, x):
        return self.linear(x), self.linear.weight


CHANGES_INPUT = {"ok", "unsupported", "parity_failed", "unverified"}


@specimen(on=[plus(1.0)], eager=CHANGES_INPUT, script=CHANGES_INPUT, export=CHANGES_INPUT)
class ChangesInput(Vectors):
    """A function, but whoever calls it twice with the same memory calls it with something else."""

    def forward(self, x):
        x.mul_(2.0).add_(1.0)
        return self.linear(x)


@specimen(on=[plus(1.0)])
class ChangesItsOwn(Vectors):
    """In place, on tensors that it has made."""

    def forward(self, x):
        y = self.linear(x)
        y[:, 0] = 0.5
        y.relu_().add_(x[:, :4])
        return y


@specimen(truth="constant")
class Constant(Vectors):
    def forward(self, x):
        return self.linear.bias.expand(x.shape[0], 4) * 2.0


@specimen(truth="constant")
class Zeroed(Vectors):
    """Multiplied by zero somewhere, as the last layer of a badly initialised branch is."""

    def forward(self, x):
        return self.linear(x) * 0.0 + self.linear.bias


@specimen(truth="constant")
class DeadUnits(Vectors):
    """Never above zero."""

    def forward(self, x):
        return torch.relu(torch.tanh(self.linear(x)) - 2.0) + self.linear.bias


SATURATED = {"ok", "unverified"}


@specimen(on=[times(1e4)], eager=SATURATED, script=SATURATED, export=SATURATED)
class Saturated(Vectors):
    """Constant for ordinary inputs, and not for large ones."""

    def forward(self, x):
        return torch.sigmoid(self.linear(x) + 200.0)


@specimen(PAIR, on=[plus(1.0), fill(5.0, 1)])
class IgnoresSecond(Vectors):
    def forward(self, left, right):
        return self.linear(left)


@specimen({"right": {"shape": ["batch", 8]}, "left": {"shape": ["batch", 8]}}, on=[plus(1.0), fill(5.0, 1)])
class ByKeyword(Vectors):
    """Inputs by name, in another order than that of the code."""

    def forward(self, left, right):
        return self.linear(left) - 2.0 * self.linear(right).sin()


@specimen(TEXT, on=[fill(49), fill(0, 1), fill(1, 1)])
class TextPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6)

    def forward(self, tokens, mask):
        weight = mask[:, :, None].float()
        return (self.words(tokens) * weight).sum(1) / (weight.sum(1) + 1.0)


@specimen(on=[plus(1.0)])
class NoParameters(nn.Module):
    def forward(self, x):
        return torch.sin(x) + x.cumsum(1)


@specimen(on=[plus(1.0)])
class SharedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) @ self.first.weight


@specimen(on=[plus(1.0)])
class UnusedParameters(Vectors):
    def __init__(self):
        super().__init__()
        self.never = nn.Linear(100, 100)

    def forward(self, x):
        return self.linear(x)
