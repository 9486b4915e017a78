"""Modules that remember earlier calls, and some that only seem to."""

from __future__ import annotations

import torch

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import plus, specimen

_CALLS = {"all": 0}


@specimen(truth="stateful")
class CounterBuffer(Vectors):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (1.0 + self.calls)


@specimen(truth="stateful")
class CounterAttribute(Vectors):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (1.0 + 0.1 * self.calls)


@specimen(truth="stateful")
class CounterList(Vectors):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        self.history.append(x.shape[0])
        return self.linear(x) + len(self.history)


@specimen(truth="stateful")
class CounterGlobal(Vectors):
    """Nothing of the module changes."""

    def forward(self, x):
        _CALLS["all"] += 1
        return self.linear(x) * (1.0 + 0.1 * _CALLS["all"])


@specimen(truth="stateful")
class LateCounter(Vectors):
    """A function for its first fifty calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        return -y if self.calls > 50 else y


@specimen(truth="stateful")
class Alternating(Vectors):
    """The same at every second call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        return y if self.calls % 2 else y + 1.0


@specimen(truth="stateful")
class MovingAverage(Vectors):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.linear(x - self.average)


@specimen(truth="stateful")
class PreviousInput(Vectors):
    """The same input twice in a row gives the same only from the second time on."""

    def __init__(self):
        super().__init__()
        self.previous = None

    def forward(self, x):
        before = self.previous if self.previous is not None and self.previous.shape == x.shape else x
        self.previous = x.clone()
        return self.linear(x) + self.linear(before)


@specimen(truth="stateful", script={"unverified", "unsupported", "failed"})
class FirstAnswer(Vectors):
    """Repeats itself perfectly: what it said first for a batch size, it says for ever."""

    def __init__(self):
        super().__init__()
        self.answers = {}

    def forward(self, x):
        if x.shape[0] not in self.answers:
            self.answers[x.shape[0]] = self.linear(x)
        return self.answers[x.shape[0]]


@specimen(truth="stateful")
class FirstShift(Vectors):
    """Normalises by the first batch that it ever saw."""

    def __init__(self):
        super().__init__()
        self.shift = None

    def forward(self, x):
        if self.shift is None:
            self.shift = x.mean()
        return self.linear(x - self.shift)


@specimen(truth="stateful")
class RingBuffer(Vectors):
    """The same numbers after every call, in another order."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scales", torch.tensor([1.0] * 40 + [2.0]))

    def forward(self, x):
        self.scales.copy_(self.scales.roll(1))
        return self.linear(x) * self.scales[20]


@specimen(truth="stateful")
class KeyValueCache(Vectors):
    def __init__(self):
        super().__init__()
        self.past = None

    def forward(self, x):
        same = self.past is not None and self.past.shape[0] == x.shape[0]
        self.past = torch.cat([self.past, x[:, None]], 1) if same else x[:, None]
        return self.linear(self.past.mean(1))


@specimen(truth="stateful")
class DriftingWeight(Vectors):
    def forward(self, x):
        y = self.linear(x)
        self.linear.weight.mul_(1.01)
        return y


@specimen(on=[plus(1.0)], script={"ok", "unsupported"}, export={"ok", "unsupported"})
class HarmlessCounter(Vectors):
    """Counts, and tells nobody."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        self.samples += x.shape[0]
        return self.linear(x)


@specimen(on=[plus(1.0)])
class LazyTable(Vectors):
    """Computed when first needed, from nothing but its own parameters."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(4, dtype=torch.float32).sin()
        return self.linear(x) * self.table


@specimen(on=[plus(1.0)])
class LazyTableByLength(Vectors):
    """As positions of a transformer are kept."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1], dtype=torch.float32).cos()
        return self.linear(x * self.tables[x.shape[1]])


@specimen(on=[plus(1.0)], script={"ok", "unsupported"}, export={"ok", "unsupported"})
class Scratch(Vectors):
    """Overwrites a buffer of its own before it reads it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scratch", torch.zeros(8))

    def forward(self, x):
        self.scratch.copy_(x.mean(0) * 0.0 + 2.0)
        return self.linear(x * self.scratch)


@specimen(on=[plus(1.0)])
class UnsavedBuffer(Vectors):
    """Random at construction, and not among the weights that are saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.randn(8), persistent=False)

    def forward(self, x):
        return self.linear(x * self.mask)


@specimen(on=[plus(1.0)])
class PlainTensor(Vectors):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.mask = torch.randn(8)

    def forward(self, x):
        return self.linear(x * self.mask)
