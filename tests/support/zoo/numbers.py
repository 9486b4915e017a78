"""Modules whose numbers are large, small, not numbers, of rare types, or matter beyond a threshold only."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import fill, plus, put, row, specimen, times, vectors

INTEGERS = vectors(dtype="int64", low=-50, high=50)


@specimen(on=[times(3.0), put(7.0), put(-7.0)])
class HardSwish(Vectors):
    def forward(self, x):
        return nn.functional.hardswish(self.linear(x) * 2.0)


@specimen(on=[times(1e4)])
class ClampThousand(Vectors):
    def forward(self, x):
        return self.linear(x).clamp(-1e3, 1e3)


@specimen(on=[times(1e3), put(1e5)])
class FarStep(Vectors):
    """Another function where ordinary inputs never are."""

    def forward(self, x):
        y = self.linear(x)
        return torch.where(y.abs() > 200.0, y * 0.5, y)


@specimen(on=[times(30.0)])
class Exponential(Vectors):
    """Overflows for large inputs."""

    def forward(self, x):
        return self.linear(x).exp()


@specimen(on=[row(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5, 4.5)])
class RoundHalf(nn.Module):
    """To the even neighbour."""

    def forward(self, x):
        return x.round()


@specimen(INTEGERS, on=[row(-7, 7, -1, 1, -4, 4, 0, -8)])
class IntegerDivision(nn.Module):
    def forward(self, x):
        return torch.div(x, 3, rounding_mode="floor"), x % 3, torch.div(x, 3, rounding_mode="trunc")


@specimen(on=[row(-7, 7, -1, 1, -4, 4, 0, -8)])
class FloatRemainder(nn.Module):
    def forward(self, x):
        return torch.remainder(x, 3.0), torch.fmod(x, 3.0)


@specimen(vectors(dtype="int64", low=1, high=1000), on=[fill(999), row(2_000_000_011)])
class LargeIntegers(nn.Module):
    """More than 32 bits."""

    def forward(self, x):
        return x * 3_000_000_019 + 7


@specimen(vectors(dtype="int32", low=1, high=30000), on=[fill(29999), fill(2**31 - 1)])
class IntegerOverflow(nn.Module):
    """Wraps around."""

    def forward(self, x):
        return x * x * x


@specimen(vectors(3, 6, 6, dtype="uint8", high=256), on=[fill(200), fill(255)])
class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return self.conv(image.float() / 255.0)


@specimen(vectors(dtype="uint8", high=256), on=[fill(200), fill(255)])
class ByteOverflow(nn.Module):
    def forward(self, x):
        return x + 100


@specimen(vectors(dtype="float16"), on=[plus(1.0)])
class HalfInput(Vectors):
    def forward(self, x):
        return self.linear(x.float())


@specimen(on=[plus(1.0)])
class DoubleInside(Vectors):
    """Loses everything in fp32."""

    def forward(self, x):
        return self.linear(((x.double() + 1e9) - 1e9).float())


@specimen(on=[plus(1.0)])
class DoubleOutput(Vectors):
    def forward(self, x):
        return self.linear(x).double() / 3.0


@specimen(eager={"failed"}, script={"failed"}, export={"failed"})
class DoubleParameters(Vectors):
    """Refused by name: other precisions are for compilers to choose."""

    def __init__(self):
        super().__init__()
        self.double()

    def forward(self, x):
        return self.linear(x.double()).float()


@specimen(on=[plus(1.0)], export={"ok", "unsupported"})
class ComplexInside(Vectors):
    def forward(self, x):
        return self.linear(torch.fft.rfft(x).abs().repeat(1, 2)[:, :8])


COMPLEX = {"ok", "unsupported", "failed"}


@specimen(on=[plus(1.0)], eager=COMPLEX, script=COMPLEX, export=COMPLEX)
class ComplexOutput(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x)


@specimen(on=[row(1, 1, 1, 1), row(2, 3, 3, 1)])
class Argmax(nn.Module):
    """The first of equal ones."""

    def forward(self, x):
        return x.round().argmax(1)


@specimen(on=[plus(1.0)])
class TopIndices(Vectors):
    def forward(self, x):
        found = self.linear(x).topk(2)
        return found.values, found.indices


@specimen(on=[row(1, 1, 0, 0, 2, 2, 1, 0)], export={"ok", "unsupported"})
class StableOrder(nn.Module):
    """Equal ones keep their order."""

    def forward(self, x):
        return x.round().sort(dim=1, stable=True, descending=True).indices


@specimen(on=[plus(1.0)])
class Flags(Vectors):
    def forward(self, x):
        return self.linear(x) > 0, (self.linear(x) * 4).to(torch.int32)


@specimen(on=[times(3.0)])
class VerySmall(Vectors):
    def forward(self, x):
        return self.linear(x) * 1e-25


@specimen(on=[times(3.0)])
class VeryLarge(Vectors):
    def forward(self, x):
        return self.linear(x) * 1e25


@specimen(on=[times(3.0)], export={"ok", "parity_failed"}, script={"ok", "parity_failed"})
class Denormal(Vectors):
    """A runtime that flushes denormals to zero is wrong, and must be told."""

    def forward(self, x):
        return self.linear(x) * 1e-41


@specimen(on=[times(3.0)])
class TwoScales(Vectors):
    """Outputs of very different size."""

    def forward(self, x):
        y = self.linear(x)
        return y * 1e6, y * 1e-6


@specimen(on=[times(3.0)])
class ScalesInOne(Vectors):
    def forward(self, x):
        return self.linear(x) * torch.tensor([1e6, 1.0, 1e-3, 1e-6])


@specimen(
    on=[put(-0.5), put(3.0), plus(2.0)],
    eager={"ok", "unverified", "parity_failed"},
    script={"ok", "unverified", "parity_failed"},
    export={"ok", "unverified", "parity_failed"},
)
class NanSample(Vectors):
    """No number for samples that begin below minus one."""

    def forward(self, x):
        return self.linear(x) + (x[:, :1] + 1.0).sqrt()


@specimen(on=[put(-5.0)], eager={"ok", "unverified"}, script={"ok", "unverified"}, export={"ok", "unverified"})
class RareNan(Vectors):
    """For one sample in ten thousand."""

    def forward(self, x):
        return self.linear(x) + (x[:, :1] + 3.8).sqrt()


NEVER_A_NUMBER = {"unverified", "parity_failed", "unsupported", "failed"}


@specimen(truth="constant", eager=NEVER_A_NUMBER, script=NEVER_A_NUMBER, export=NEVER_A_NUMBER)
class AlwaysNan(Vectors):
    def forward(self, x):
        return self.linear(x) * float("nan")


@specimen(
    [{"shape": ["batch", 4, 8]}, {"shape": ["batch", 4], "dtype": "bool"}],
    on=[row(1, 1, 1, 1, of=1), row(0, 0, 1, 0, of=1)],
)
class InfiniteMask(nn.Module):
    """Scores of minus infinity, also in an output."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, words, mask):
        keep = mask | (torch.arange(4) == 0)
        scores = self.score(words).squeeze(-1).masked_fill(~keep, float("-inf"))
        return (scores.softmax(-1)[:, :, None] * words).sum(1), scores


@specimen(on=[put(42.0)], python=True)
class ChaoticBeside(Vectors):
    """One output follows any rounding error, and must not excuse the other, of which a branch may be missing."""

    def forward(self, x):
        y = self.linear(x)
        if y.abs().max() > 6.0:
            y = -y
        return y, (x * 1e6).floor().to(torch.int32)


@specimen(on=[times(3.0)])
class Chaotic(nn.Module):
    """An output that follows any rounding error of its input, beside an ordinary one that it must not excuse."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 4)

    def forward(self, x):
        return self.narrow(torch.relu(self.wide(x))), (x * 1e6).floor().to(torch.int32)


@specimen(on=[times(3.0)])
class Detector(nn.Module):
    """Boxes in pixels and scores below one in the same tensor, as detectors give them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 32)
        self.boxes = nn.Linear(32, 4)
        self.hidden = nn.Linear(32, 32)
        self.scores = nn.Linear(32, 10)

    def forward(self, x):
        stem = torch.relu(self.stem(x))
        scores = self.scores(nn.functional.gelu(self.hidden(stem))).sigmoid()
        return torch.cat([self.boxes(stem) * 640.0, scores], 1)
