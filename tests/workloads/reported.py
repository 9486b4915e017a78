"""Modules as public reports and users bring them, each as small as it gets; as ``torch:tests.workloads.reported:<name>``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROWS: dict[str, Any] = {"shape": ["batch", 8]}
IMAGE: dict[str, Any] = {"shape": ["batch", 4, 6, 6]}


def _integers(size: int, low: int, high: int) -> dict[str, Any]:
    return {"shape": ["batch", size], "dtype": "int64", "low": low, "high": high}


INPUTS: dict[str, Any] = {
    "LayerNormOffset": [{"shape": ["batch", 64]}],
    "Normed": [{"shape": ["batch", 3, 6, 6]}],
    "Var": [ROWS],
    "Resid": [{"shape": ["batch", 32]}],
    "SoftmaxBig": [ROWS],
    "TopK": [{"shape": ["batch", 10]}],
    "MaxPoolNaN": [IMAGE],
    "NonZero": [ROWS],
    "BoolMask": [ROWS],
    "Bicubic": [{"shape": ["batch", 2, 10, 10]}],
    "MaxPoolCeil": [IMAGE],
    "AvgPoolCeil": [{"shape": ["batch", 4, 8, 8]}],
    "Int64Ids": [{"shape": ["batch", 5], "dtype": "int64"}],
    "Scalar": [{"shape": ["batch", 4]}, {"shape": []}],
    "EveryOutput": [{"shape": ["batch", 4]}],
    "exits": [ROWS],
    "Detect": [{"shape": ["batch", 3, 16, 16]}],
    "SelfIndexAdd": [{"shape": ["batch", 4]}],
    "FarSlices": [{"shape": ["batch", 30]}],
    "HalfInside": [{"shape": ["batch", 16]}],
    "MeanAll": [{"shape": ["batch", 3, 8, 8]}],
    "Uniq": [{"shape": ["batch", 5]}],
    "TiedLM": [{"shape": ["batch", 7], "dtype": "int64"}],
    "RingCache": [{"shape": ["batch", 6, 8]}],
    "DictKw": {"image": {"shape": ["batch", 6]}, "scale": {"shape": ["batch", 1]}},
    "SparseProd": [{"shape": ["batch", 10]}],
    "ComplexMix": [ROWS],
    "BNNoStats": [{"shape": ["batch", 3, 6, 6]}],
    "PeakTemp": [{"shape": ["batch", 4]}],
    "Remainders": [_integers(4, -20, 20), {"shape": ["batch", 4]}],
    "RoundHalf": [_integers(8, -9, 10)],
    "EmptyCat": [{"shape": ["batch", 4]}],
    "Bucket": [_integers(9, -4, 5)],
    "Sdpa": [{"shape": ["batch", 4, 5, 8]}, {"shape": ["batch", 2, 5, 8]}, {"shape": ["batch", 2, 5, 8]}],
    "Unbiased": [{"shape": ["batch", 6]}],
    "NegStep": [ROWS],
    "Pixel": [{"shape": ["batch", 4, 5, 5]}],
    "Spy": [{"shape": ["batch", 3, 96, 96]}],
}
"""What each of them takes, as a study file says it."""


class LayerNormOffset(nn.Module):
    """What is left of numbers whose common part is three thousand times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + 3000.0)


class Normed(nn.Module):
    """The same with a hundred thousand, by channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + 100000.0)


class Var(nn.Module):
    """Small variances around a large mean."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 2000
        return y.var(-1), y.std(-1), y - y.mean(-1, keepdim=True)


class Resid(nn.Module):
    """A shift forth and back, which costs the last digits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + 1000.0) - 1000.0


class SoftmaxBig(nn.Module):
    """Exponents that lie far apart."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x * 1e4, -1), torch.log_softmax(x * 1e4, -1)


class TopK(nn.Module):
    """Values that are equal, so that their places are anybody's."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.topk(torch.round(x), 3)


class MaxPoolNaN(nn.Module):
    """NaN in windows, from logarithms of negative numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(torch.log(x), 2)


class NonZero(nn.Module):
    """As many rows as the data have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0)


class BoolMask(nn.Module):
    """As many numbers as the data have it, and their sum."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[x > 0].sum(), x[x.abs() > 1]


class Bicubic(nn.Module):
    """A size that is rounded down."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=0.7, mode="bicubic", align_corners=False)


class MaxPoolCeil(nn.Module):
    """A last window that begins in the padding, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(self.conv(x), 3, 4, 1, ceil_mode=True)


class AvgPoolCeil(nn.Module):
    """A last window that reaches beyond the padding: what is beyond does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(self.conv(x), 3, 2, 1, ceil_mode=True, count_include_pad=True)


class Int64Ids(nn.Module):
    """Hashed identifiers, which are any integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(97, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids % 97).sum(1)


class Scalar(nn.Module):
    """An input without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * t


class EveryOutput(nn.Module):
    """An input that is passed through, an output twice, a view, None, a number, and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.linear(x)
        return {"x": x, "y": y, "again": y, "view": y[:, :2], "none": None, "scale": 3, "name": "abc"}


def exits() -> nn.Module:
    """Ends its process with words."""
    raise SystemExit("no licence found")


class Detect(nn.Module):
    """Boxes that suppress each other, by an operator of torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, stride=4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from torchvision.ops import batched_nms

        found = self.conv(x).flatten(2).transpose(1, 2)[0]
        corner = found[:, :2] * 10
        boxes, scores = torch.cat([corner, corner + found[:, 2:4].exp() * 5], 1), found[:, 4].sigmoid()
        kept = batched_nms(boxes, scores, (found[:, 5] > 0).long(), 0.5)[:5]
        return boxes[kept], scores[kept]


class SelfIndexAdd(nn.Module):
    """Adds in place to rows that an index repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.tensor([1, 1, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z[:, self.rows] += z[:, self.rows]
        return z


class FarSlices(nn.Module):
    """Slices from before the beginning to beyond the end."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        head, step = x[:, -50:-9], x[:, -50 : 2**62 : 5]
        return torch.maximum(head[:, :1], -step), step.sum(1)


class HalfInside(nn.Module):
    """Half precision between single."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = (x * 3.0).half()
        y = torch.where(half > 0, half, torch.full_like(half, 0.1))
        return (y + 1.0).float() * 2.0 + (y * 1.7).float()


class MeanAll(nn.Module):
    """A mean over all axes but the batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).mean(dim=(1, 2, 3))


class Uniq(nn.Module):
    """The values that there are, where, and how often."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.unique(torch.round(x), return_inverse=True, return_counts=True)


class TiedLM(nn.Module):
    """One table for what goes in and what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(500, 48), nn.Linear(48, 48), nn.Linear(48, 500, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.table(ids))))


class RingCache(nn.Module):
    """A cache that each call writes before it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(8, 6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[: x.shape[0], : x.shape[1]] = self.key(x)
        cached = self.cache[: x.shape[0], : x.shape[1]]
        return torch.softmax(x @ cached.transpose(1, 2), -1) @ cached


class DictKw(nn.Module):
    """An input by name only, and outputs within outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, image: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        y = self.linear(image)
        return {"logits": y, "parts": (y * scale, {"norm": y.norm(dim=-1)})}


class SparseProd(nn.Module):
    """A sparse matrix for a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", (torch.randn(12, 10) * (torch.rand(12, 10) > 0.7)).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.matrix, x.t()).t()


class ComplexMix(nn.Module):
    """A complex weight between real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, dim=-1) * self.weight, n=8, dim=-1)


class BNNoStats(nn.Module):
    """Normalises by the batch, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(x)))


class PeakTemp(nn.Module):
    """Much memory for a moment in the middle of a call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(1_000_000 // x.shape[0], dtype=torch.float32)
        return x + (x[:, :1, None] + steps[None, None]).mul_(1e-7).amax(-1)


class Remainders(nn.Module):
    """Remainders and quotients of negative numbers, and integers of floats."""

    def forward(self, i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by = torch.tensor([3, -3, 4, -5], dtype=torch.int64)
        rounded = x.to(torch.int32), torch.div(x, 0.7, rounding_mode="floor")
        return i // by, i % by, torch.fmod(i, by), torch.remainder(x, -1.5), *rounded


class RoundHalf(nn.Module):
    """Rounds numbers that lie in the middle."""

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = i.float() * 0.5
        return torch.round(half), torch.round(half, decimals=1), torch.floor(half + 0.5)


class EmptyCat(nn.Module):
    """Puts nothing in front of something, and sums nothing."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        empty = x[:, 4:4]
        return torch.cat([empty, x], 1), empty.sum(1), torch.cat([x[:, :0], x[:, 2:]], 1).mean(1)


class Bucket(nn.Module):
    """Numbers that lie on the borders of their intervals."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([-1.0, 0.0, 0.5, 1.0]))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = i.float() * 0.5
        return torch.bucketize(x, self.edges), torch.bucketize(x, self.edges, right=True)


class Sdpa(nn.Module):
    """Attention that looks back only, with fewer keys' heads than queries'."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Unbiased(nn.Module):
    """The variance of one number, which is zero."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, :1].var(1, correction=0), x.std(1), torch.logsumexp(x * 50, 1)


class NegStep(nn.Module):
    """Reversed, rolled, padded by less than nothing, and cut into windows."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.flip(1).roll(2, 1), functional.pad(x, (-1, 2)), x.unfold(1, 3, 2)


class Pixel(nn.Module):
    """Shuffles what a transposed convolution in groups gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pixel_shuffle(self.conv(x), 2)


class Spy(nn.Module):
    """A mean of nine thousand numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))
