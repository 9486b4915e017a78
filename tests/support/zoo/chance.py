"""Modules that draw random numbers: at every call, rarely, or only when they are made."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import plus, specimen

REBUILT = {"parity_failed", "unverified", "unsupported", "failed"}


@specimen(truth="random")
class Noise(Vectors):
    def forward(self, x):
        return self.linear(x + torch.rand_like(x))


@specimen(truth="random")
class FaintNoise(Vectors):
    """About as large as what other precisions do."""

    def forward(self, x):
        return self.linear(x) * (1.0 + 3e-3 * torch.randn(()))


@specimen(truth="random")
class RareNoise(Vectors):
    """At one call of thirty."""

    def forward(self, x):
        y = self.linear(x)
        return y + (torch.rand(()) < 1 / 30).float()


@specimen(truth="random")
class NumpyNoise(Vectors):
    def forward(self, x):
        return self.linear(x) + float(np.random.rand())


@specimen(truth="random")
class PythonNoise(Vectors):
    def forward(self, x):
        return self.linear(x) * random.uniform(0.5, 1.5)


@specimen(truth="random")
class Clock(Vectors):
    def forward(self, x):
        return self.linear(x) * (1.0 + time.time() % 1.0)


@specimen(truth="random")
class FunctionalDropout(Vectors):
    """``training`` is True by default."""

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.3, training=True)


@specimen(
    truth="random", eager={"unverified", "failed"}, script={"unverified", "failed"}, export={"unverified", "failed"}
)
class InsistingDropout(Vectors):
    """Its author wants dropout for ever."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def train(self, mode=True):
        super().train(mode)
        self.drop.training = True
        return self

    def forward(self, x):
        return self.drop(self.linear(x))


@specimen(truth="random")
class LateTraining(Vectors):
    """Switches its dropout on when it is called."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.drop.train()(self.linear(x))


@specimen(truth="random")
class BernoulliGate(Vectors):
    def forward(self, x):
        return self.linear(x) * torch.bernoulli(torch.full((x.shape[0], 1), 0.5))


@specimen(truth="random")
class OneRandomOutput(Vectors):
    """Two outputs; the second is noise."""

    def forward(self, x):
        return self.linear(x), torch.randn(x.shape[0], 2)


@specimen(on=[plus(1.0)], script={"unsupported", "parity_failed"}, export={"unsupported", "parity_failed", "failed"})
class ReseededNoise(Vectors):
    """Draws the same numbers at every call: a function. A graph has the drawing without the seeding."""

    def forward(self, x):
        torch.manual_seed(7)
        return self.linear(x + torch.randn(8))


@specimen(on=[plus(1.0)], script={"ok", "unsupported", "parity_failed"}, export={"ok", "unsupported", "parity_failed"})
class OwnGenerator(Vectors):
    def forward(self, x):
        return self.linear(x + torch.randn(8, generator=torch.Generator().manual_seed(3)))


@specimen(on=[plus(1.0)])
class RandomConstruction(Vectors):
    """Random once, when it is made: its weights are what they are."""

    def __init__(self):
        super().__init__()
        self.order = torch.randperm(8).tolist()
        self.scale = random.Random(torch.initial_seed() % 1000).uniform(0.5, 2.0)

    def forward(self, x):
        return self.linear(x[:, self.order]) * self.scale


@specimen(truth="random", eager=REBUILT, script=REBUILT, export={"ok", *REBUILT})
class EntropyAtConstruction(Vectors):
    """Whoever builds it again has another one. Its exports, made before, are right."""

    def __init__(self):
        super().__init__()
        self.scale = random.SystemRandom().uniform(0.5, 2.0)

    def forward(self, x):
        return self.linear(x) * self.scale


@specimen(on=[plus(1.0)])
class DeadDropout(Vectors):
    """Dropout that evaluation mode switches off, as nearly every network has it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.linear(x))
