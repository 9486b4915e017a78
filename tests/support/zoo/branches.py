"""Modules that decide by their data, in every way by which data reach Python. A trace keeps one side of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from tests.support.zoo.specimen import OWN_LIMITS, fill, plus, put, row, specimen, vectors

TOKENS = [{"shape": ["batch", 10], "dtype": "int64", "high": 1000}]


class Vectors(nn.Module):
    """Eight numbers in, four out."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)


@specimen(on=[plus(1), plus(-1)], python=True)
class CommonBranch(Vectors):
    def forward(self, x):
        if x.mean() > 0:
            return self.linear(x)
        return -self.linear(x) * 3.0


@specimen(on=[put(5.0)], python=True)
class RareBranch(Vectors):
    """Taken by one sample in ten thousand."""

    def forward(self, x):
        y = self.linear(x)
        if x[:, 0].max() > 3.72:
            y = -y
        return y


@specimen(on=[put(2.5, sample=0), put(-2.5, sample=0)], python=True)
class FirstSampleBranch(Vectors):
    def forward(self, x):
        return self.linear(x) if x[0, 0] > 1.5 else self.linear(x).flip(1)


@specimen(on=[plus(1), plus(-1), put(9.0), row(-9.0)], python=True)
class NestedBranch(Vectors):
    def forward(self, x):
        y = self.linear(x)
        if x.sum() > 0:
            y = y * 2.0 if x.max() > 4.5 else y + 1.0
        elif x.min() < -4.5:
            y = y - 1.0
        return y


@specimen(on=[put(6.0)], python=True)
class ItemBranch(Vectors):
    def forward(self, x):
        peak = x.abs().max().item()
        return self.linear(x) * (1.0 if peak < 4.5 else 2.0)


@specimen(on=[put(6.0)], python=True)
class ListBranch(Vectors):
    def forward(self, x):
        peaks = x.amax(1).tolist()
        return self.linear(x) * (1.0 if peaks[-1] < 3.5 else 2.0)


@specimen(on=[put(6.0)], python=True)
class NumpyBranch(Vectors):
    def forward(self, x):
        return self.linear(x) * (1.0 if x.detach().numpy().max() < 4.5 else 2.0)


@specimen(on=[put(6.0)], python=True)
class ArrayBranch(Vectors):
    """NumPy takes the tensor by itself."""

    def forward(self, x):
        return self.linear(x) * (1.0 if np.asarray(x.detach()).max() < 4.5 else 2.0)


@specimen(on=[plus(2.0)], python=True)
class NumpyDetour(Vectors):
    """Decides nothing, but a trace has the numbers of its example for constants."""

    def forward(self, x):
        return self.linear(torch.from_numpy(np.sin(x.detach().numpy())))


@specimen(on=[put(6.0)], python=True)
class FloatScale(Vectors):
    """Decides nothing either: the data become a number of Python."""

    def forward(self, x):
        return self.linear(x) / float(x.abs().max())


@specimen(on=[put(6.0)], python=True)
class TensorOfItem(Vectors):
    def forward(self, x):
        return self.linear(x) + torch.tensor([x[0, 0].item(), x[0, 1].item(), 0.0, 1.0])


@specimen(TOKENS, on=[put(7)], python=True)
class MemberBranch(nn.Module):
    """``in`` asks the tensor."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 6)

    def forward(self, tokens):
        y = self.words(tokens).mean(1)
        return -y if 7 in tokens else y


@specimen(on=[put(6.0, sample=0), put(6.0)], python=True)
class MaxOfRows(Vectors):
    """Python's own ``max`` compares tensors."""

    def forward(self, x):
        best = max(list(x), key=lambda sample: sample.sum())
        return self.linear(x) + self.linear(best)


@specimen(on=[put(20.0, sample=0), put(20.0)], python=True)
class SortedRows(Vectors):
    def forward(self, x):
        order = sorted(range(len(x)), key=lambda index: float(x[index].sum()))
        return self.linear(torch.stack([x[index] for index in order]))


def _hot(x: torch.Tensor) -> bool:
    return bool((x > 4.5).any())


@specimen(on=[put(6.0)], python=True)
class HelperBranch(Vectors):
    def forward(self, x):
        y = self.linear(x)
        if _hot(x):
            y = y * 2.0
        return y


@specimen(on=[put(6.0)], python=True)
class PropertyBranch(Vectors):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    @property
    def hot(self):
        return self.seen.max() > 4.5

    def forward(self, x):
        self.seen = x.amax(0)
        return self.linear(x) * (2.0 if self.hot else 1.0)


@specimen(on=[row(9, 0, 0), row(0, 9, 0), row(0, 0, 9)], python=True)
class Expert(Vectors):
    """The data index a list of layers."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

    def forward(self, x):
        return self.experts[int(x.sum(0)[:3].argmax())](x)


@specimen(on=[row(1, 2, 1, 2), row(1, 1, 1, 1)], python=True)
class EqualBranch(Vectors):
    """``torch.equal`` gives a bool of Python without asking a tensor for one."""

    def forward(self, x):
        return -self.linear(x) if torch.equal(x[:, 0:2], x[:, 2:4]) else self.linear(x)


@specimen(on=[fill(4.0), row(*[4.0] * 8)], python=True)
class CloseBranch(Vectors):
    def forward(self, x):
        return -self.linear(x) if torch.allclose(x, x.round()) else self.linear(x)


@specimen(on=[plus(4.0), plus(-4.0)], python=True)
class ShapeBranch(Vectors):
    """How many elements a mask selects is a shape, which is no tensor."""

    def forward(self, x):
        y = self.linear(x)
        return -y if x[x > 0].shape[0] > 0.9 * x.numel() else y


@specimen(on=[plus(4.0), plus(-4.0)], python=True)
class CountScale(Vectors):
    def forward(self, x):
        return self.linear(x) * (1 + len(x.nonzero()) - len((x > 0).nonzero()))


@specimen(on=[put(6.0)], python=True)
class TextBranch(Vectors):
    """A number that is looked up by how it is printed."""

    def forward(self, x):
        return self.linear(x) * {"True": 2.0, "False": 1.0}[f"{(x.max() > 4.5).numpy()}"]


@specimen(on=[put(0.0), put(0.2), put(3.0)], python=True)
class ExceptionBranch(Vectors):
    def forward(self, x):
        try:
            share = 1 / round(abs(x[-1, 0].item()))
        except ZeroDivisionError:
            share = -1.0
        return self.linear(x) * share


@specimen(on=[put(6.0)], python=True)
class ThreadBranch(Vectors):
    """What watches the calls of one thread does not see those of another."""

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool:
            hot = pool.submit(_hot, x).result()
        return self.linear(x) * (2.0 if hot else 1.0)


@specimen(on=[put(6.0)], python=True)
class HookBranch(Vectors):
    """The class's code decides nothing; a hook does."""

    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda _, inputs, y: y * 2.0 if inputs[0].max() > 4.5 else y)

    def forward(self, x):
        return self.linear(x)


@specimen(on=[put(6.0)], python=True)
class PatchedBranch(Vectors):
    """``forward`` of the instance is not that of its class."""

    def __init__(self):
        super().__init__()
        self.forward = self._patched  # type: ignore[method-assign]  # what the specimen is about

    def forward(self, x):
        return self.linear(x)

    def _patched(self, x):
        return self.linear(x) * (2.0 if x.max() > 4.5 else 1.0)


@specimen(on=[put(9.0), put(4000.0)], python=True)
class BigIntegers(Vectors):
    """Integers of Python do not overflow; those of a scripted graph do."""

    def forward(self, x):
        peak = int(x.abs().max() * 1000.0)
        return self.linear(x) * float((peak**9) % 97)


@torch.jit.script
def _scripted(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if bool(x.max() > 4.5):
        return -y
    return y


@specimen(on=[put(6.0)], python=True)
class ScriptedBranch(Vectors):
    """A trace keeps both sides of what was scripted."""

    def forward(self, x):
        return _scripted(self.linear(x), x)


@specimen(on=[put(float("nan")), put(6.0)], script=OWN_LIMITS, export=OWN_LIMITS)
class Guard(Vectors):
    """Refuses what is no number. An engine that does not refuse it computes the same function."""

    def forward(self, x):
        y = self.linear(x)
        if y.shape[0] > 10 and bool(torch.isnan(x).all()):
            raise ValueError("no numbers")
        return y


@specimen(on=[put(6.0), put(-6.0)])
class WhereBranch(Vectors):
    """Both sides are in every graph."""

    def forward(self, x):
        y = self.linear(x)
        return torch.where(x.amax(1, keepdim=True) > 4.5, -y, y)


@specimen(vectors(), on=[plus(2.0), plus(-2.0)], script={"ok", "unsupported"}, export={"ok", "unsupported"})
class Cond(Vectors):
    """Control flow that graphs can express."""

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y * 2.0, lambda y: y - 1.0, (self.linear(x),))
