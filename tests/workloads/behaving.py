"""Models that behave in ways that decide what can be verified; as ``torch:tests.workloads.behaving:<name>``."""

from __future__ import annotations

import random

import torch
from torch import nn


class Linear(nn.Module):
    """The base of the others: four numbers in, four out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values)


class Chosen(Linear):
    """Scales its outputs where the data say so."""

    def forward(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.linear(values) * scale if bool(values.sum() > 0) else self.linear(values)


class Insisting(Linear):
    """Its dropout stays on, because its author has overridden ``train``."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def train(self, mode: bool = True) -> Insisting:
        return super().train(True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(values))


class DroppedInMapping(Linear):
    """Structured outputs, dropout and batch normalisation: what a wrapper in training mode would change."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.drop(self.norm(self.linear(values)))}


class FunctionalDropout(Linear):
    """Draws random numbers, whatever its mode."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.linear(values), 0.1, True)


class RareChance(Linear):
    """Draws by Python, and hardly ever does anything about it."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) * (2 if random.random() < 1e-9 else 1)


class Counting(Linear):
    """Remembers how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(values) + (self.calls > 10**6)


class MovingAverage(Linear):
    """Keeps a moving average of what it has seen in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(values.mean(0), alpha=0.1)
        return self.linear(values - self.mean)


class LazyTable(Linear):
    """Makes a table at its first call, and keeps its last input: nothing of which changes an answer."""

    table: torch.Tensor | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
        self.last = values.detach().clone()
        return self.linear(values) + self.table


class InPlace(Linear):
    """Writes to its input."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values.add_(1))


class ClampedInPlace(Linear):
    """Writes to its input only what is large."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values.clamp_(-8.0, 8.0)
        return self.linear(values)


class OwnOutput(Linear):
    """Gives a tensor of its own, which every call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.kept[: len(values)].copy_(self.linear(values))


class Forces(Linear):
    """Gives the gradient of an energy by its inputs, and trusts that gradients are on."""

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        values.requires_grad_(True)
        energy = self.linear(values).tanh().sum(-1)
        return {"energy": energy, "forces": -torch.autograd.grad(energy.sum(), values)[0]}


class ForcesInside(Linear):
    """The same, and turns gradients on."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            values = values.detach().requires_grad_(True)
            self.linear(values).tanh().sum().backward()
            return values.grad


class Slopes(Linear):
    """Gives the Jacobian of each sample, which no trace holds."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.jacrev(lambda row: self.linear(row).tanh()))(values)


class OneForEach(Linear):
    """Gives a tensor for each sample."""

    def forward(self, values: torch.Tensor) -> list[torch.Tensor]:
        return list(self.linear(values))


class Centred(Linear):
    """Every sample depends on all of its batch."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) - self.linear(values).mean(0)


class OtherAtThree(Linear):
    """Another function at one batch size."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.linear(values) * (2 if values.shape[0] == 3 else 1)


class Deaf(Linear):
    """Does not depend on its input."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(values)


class Branching(Linear):
    """Looks at its data, at its shape and at its parameters."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[1] != 4 or float(self.linear.bias.sum()) > 1e6:
            return values
        out = self.linear(values)
        if out.amax() > 2.5:
            return -out
        return out


class Unscriptable(Branching):
    """Looks at its data in a way that TorchScript cannot compile either."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        total = sum(sorted(values.flatten().tolist(), key=lambda one: -one))
        return self.linear(values) * total


class Printed(Linear):
    """What is printed of a tensor is data too."""

    def forward(self, x):
        return -super().forward(x) if "42." in str(x[:1]) else super().forward(x)


class Spectrum(Linear):
    """Complex outputs."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(self.linear(values))
