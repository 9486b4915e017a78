"""Modules to which the batch matters: its size, or the other samples of it."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from tests.support.zoo.branches import Vectors
from tests.support.zoo.specimen import plus, put, specimen, vectors

SEVERAL = (1, 3, 4)
MIXED: Final = "mixes samples"
IN_TRAINING = {"ok", "unverified", "failed"}


@specimen(truth=MIXED, on=[put(9.0)], batch_sizes=SEVERAL)
class BatchMean(Vectors):
    def forward(self, x):
        return self.linear(x - x.mean(0, keepdim=True)) + 1.0 * x[:, :4]


@specimen(truth=MIXED, on=[put(9.0)], batch_sizes=SEVERAL)
class BatchSoftmax(Vectors):
    def forward(self, x):
        return self.linear(x).softmax(0) + self.linear(x)


@specimen(truth=MIXED, on=[put(9.0, sample=0)], batch_sizes=SEVERAL)
class PreviousSample(Vectors):
    def forward(self, x):
        return self.linear(x) + self.linear(x.roll(1, 0))


@specimen(truth=MIXED, on=[put(50.0)], batch_sizes=SEVERAL)
class BatchPeak(Vectors):
    def forward(self, x):
        return self.linear(x) / x.abs().amax()


@specimen(truth=MIXED, on=[put(50.0)], batch_sizes=SEVERAL)
class RareMixing(Vectors):
    """Samples are independent until one of them is extreme."""

    def forward(self, x):
        return self.linear(x) + torch.relu(x.amax() - 6.0)


@specimen(truth=MIXED, on=[put(50.0)], batch_sizes=SEVERAL)
class MeanOfAll(Vectors):
    """A single number for the whole batch."""

    def forward(self, x):
        return self.linear(x).square().mean()


@specimen(truth=MIXED, on=[plus(1.0)], batch_sizes=SEVERAL)
class BatchOfFour(Vectors):
    """Another function at one batch size."""

    def forward(self, x):
        y = self.linear(x)
        return -y if x.shape[0] == 4 else y


@specimen(truth=MIXED, on=[plus(1.0)], batch_sizes=(1, 3, 6))
class LargeBatch(Vectors):
    def forward(self, x):
        y = self.linear(x)
        return y.flip(1) if x.shape[0] > 4 else y


@specimen(truth=MIXED, on=[plus(1.0)], batch_sizes=SEVERAL)
class BatchSizeScale(Vectors):
    def forward(self, x):
        return self.linear(x) / x.shape[0]


@specimen(truth=MIXED, on=[put(9.0)], batch_sizes=(3, 4))
class BatchStatistics(Vectors):
    """Batch normalisation without statistics of its own: always by the batch."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, x):
        return self.linear(self.norm(x)) + 0.3 * x[:, :4]


@specimen(truth=MIXED, on=[put(9.0)], batch_sizes=(3, 4), eager=IN_TRAINING, script=IN_TRAINING, export=IN_TRAINING)
class InsistingNorm(Vectors):
    """Its author wants it in training mode, where it also keeps statistics that nobody reads."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def train(self, mode=True):
        super().train(mode)
        self.norm.training = True
        return self

    def forward(self, x):
        return self.linear(self.norm(x)) + 0.3 * x[:, :4]


@specimen(vectors(3, 8, 8), on=[put(9.0)])
class ImageNorm(nn.Module):
    """By the statistics of each sample: a function of each sample alone, also in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.InstanceNorm2d(4, affine=True)

    def forward(self, image):
        return self.norm(self.conv(image)) + 0.1 * self.conv(image)


@specimen(vectors(3, 8, 8), on=[put(9.0)])
class OrdinaryNorm(nn.Module):
    """Batch normalisation as networks are deployed, with statistics that matter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, image):
        return torch.relu(self.norm(self.conv(image)))
