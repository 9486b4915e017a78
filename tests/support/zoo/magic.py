"""Modules that do something else for one number that no random input has. Only who follows the data finds out.

No check of outputs reveals them, so each is a way by which data may reach Python unseen.
"""

from __future__ import annotations

import ctypes
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import put, row, specimen, vectors

MAGIC = 42.0
"""A value that no random input has: only those who follow the data know of the branch."""


@specimen(on=[put(MAGIC)], python=True)
class MagicValue(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return -y if (x == MAGIC).any() else y


@specimen(on=[put(MAGIC)], python=True)
class MagicShape(Vectors):
    """How many elements a mask selects is a shape, which is no tensor."""

    def forward(self, x):
        y = self.linear(x)
        return -y if x[x == MAGIC].shape[0] > 0 else y


@specimen(on=[put(MAGIC)], python=True)
class MagicCount(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return -y if len((x == MAGIC).nonzero()) else y


@specimen(on=[row(1, 1, 1, 1, 1, 1, 1, 1)], python=True)
class MagicUnique(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return -y if x.unique().numel() == 1 else y


@specimen(on=[put(MAGIC)], python=True)
class MagicThread(Vectors):
    """What watches the calls of one thread does not see those of another."""

    def forward(self, x):
        y = self.linear(x)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda: bool((x == MAGIC).any())).result()
        return -y if found else y


@specimen(on=[put(MAGIC)], python=True)
class MagicDlpack(Vectors):
    """NumPy takes the memory without asking for an array."""

    def forward(self, x):
        y = self.linear(x)
        return -y if (np.from_dlpack(x.detach()) == MAGIC).any() else y


@specimen(on=[put(MAGIC)], python=True)
class MagicStorage(Vectors):
    """Bytes, without any tensor."""

    def forward(self, x):
        y = self.linear(x)
        numbers = np.frombuffer(bytes(x.contiguous().untyped_storage()), np.float32)
        return -y if (numbers == MAGIC).any() else y


@specimen(on=[put(MAGIC)], python=True)
class MagicPickle(Vectors):
    """A copy that went through bytes."""

    def forward(self, x):
        y = self.linear(x)
        copied = pickle.loads(pickle.dumps(x))
        return -y if (copied == MAGIC).any() else y


@specimen(on=[put(MAGIC)], python=True)
class MagicText(Vectors):
    """What is printed of a tensor is data too."""

    def forward(self, x):
        y = self.linear(x)
        return -y if "42." in str(x[-1, :1]) else y


@specimen(on=[put(MAGIC)], python=True)
class MagicMemory(Vectors):
    """By its address."""

    def forward(self, x):
        y, x = self.linear(x), x.contiguous()
        numbers = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
        return -y if MAGIC in list(numbers) else y


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return -torch.ones(()) if bool((x == MAGIC).any()) else torch.ones(())


@specimen(on=[put(MAGIC)], python=True)
class MagicFunction(Vectors):
    """Within a function with a gradient of its own."""

    def forward(self, x):
        return self.linear(x) * _Sign.apply(x)


@specimen(on=[put(MAGIC)], python=True)
class MagicCallback(Vectors):
    """A layer that is called through a hook, on what a pre-hook has copied."""

    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(self._look)
        self.found = False

    def _look(self, _, inputs):
        self.found = bool((inputs[0] == MAGIC).any())

    def forward(self, x):
        return -self.linear(x) if self.found else self.linear(x)


@specimen(vectors(dtype="int64", low=0, high=20), on=[put(0), put(1)], python=True)
class MagicCached(nn.Module):
    """By a cache of Python that is keyed by what the data are."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.kept = {}

    def forward(self, tokens):
        key = tuple(tokens.flatten().tolist())
        if key not in self.kept:
            self.kept[key] = self.words(tokens).sum(1) * (1 if sum(key) % 2 else 3)
        return self.kept[key]


@specimen(on=[put(MAGIC)], python=True)
class MagicIteration(Vectors):
    """As many steps as a mask selects."""

    def forward(self, x):
        y = self.linear(x)
        for _ in (x == MAGIC).nonzero():
            y = -y
        return y
