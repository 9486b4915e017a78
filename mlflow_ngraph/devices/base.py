"""The contract of a device profile: `DeviceProfile`, its accelerator and compilers, and `Fitness` of this machine.

A profile names a kind of machine, recognises it, and lists the compilers worth trying on it. To add one, subclass
`DeviceProfile` and register it in the entry-point group ``mlflow_ngraph.devices``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from mlflow_ngraph.errors import DeviceError


@dataclass(frozen=True)
class Fitness:
    """Match of this machine with a profile."""

    problems: tuple[str, ...] = ()
    """Problems; empty when it can serve. Each is a clause that follows "device 'x' "."""
    warnings: tuple[str, ...] = ()
    """Notes for readers of its numbers."""

    @property
    def serves(self) -> bool:
        """True if studies for the profile can run on this machine."""
        return not self.problems


class DeviceProfile(ABC):
    """A named kind of machine."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for people."""
    accelerator: ClassVar[Literal["cpu", "cuda"]] = "cpu"
    """Accelerator of engines."""
    processor: ClassVar[str] = ""
    """A part of the names of those processors that it is meant for; empty where it is meant for any."""
    compilers: ClassVar[tuple[str, ...]]
    """The compilers that are worth trying, the baseline first."""
    project: ClassVar[str | None] = None
    """Folder of the MLflow sub-project with an environment for the device, or None if there is none."""

    @abstractmethod
    def fitness(self) -> Fitness:
        """Compare this machine with the profile. Imports no runtime and changes nothing."""

    def check(self) -> tuple[str, ...]:
        """Return the warnings of a machine that fits. Raises `DeviceError` for a machine that does not."""
        fitness = self.fitness()
        if not fitness.serves:
            raise DeviceError(f"device {self.name!r} {'; and '.join(fitness.problems)}")
        return fitness.warnings
