"""A device that engines are compiled for, and that need not be the machine that compiles them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlflow_ngraph.errors import DeviceError

_GPU = re.compile(r"sm_?(\d+)(\d)")
_LEVEL = re.compile(r"x86-64-v[1-4]")


@dataclass(frozen=True)
class Elsewhere:
    """What a compiler has to know of a device that it does not see."""

    device: str
    """Name of the device profile."""
    architecture: str = ""
    """Of what engines compute on: ``sm89`` for a GPU, ``x86-64-v3`` for a processor; empty where it does not matter."""

    @classmethod
    def parse(cls, text: str) -> Elsewhere:
        """Read the form ``DEVICE`` or ``DEVICE:ARCHITECTURE``, such as ``gpu:sm89``.

        Raises
        ------
        DeviceError
            The architecture is none.
        """
        device, _, given = text.partition(":")
        architecture = given.strip().lower()
        if gpu := _GPU.fullmatch(architecture):
            architecture = f"sm{gpu[1]}{gpu[2]}"
        elif architecture and not _LEVEL.fullmatch(architecture):
            raise DeviceError(
                f"no architecture {given!r}: a GPU has one such as sm89, a processor x86-64-v2, x86-64-v3 or x86-64-v4"
            )
        return cls(device.strip(), architecture)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Of the GPU; None where the architecture is none of a GPU."""
        match = _GPU.fullmatch(self.architecture)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def level(self) -> str:
        """The level of x86-64 that the processor has at least; empty where none is said."""
        return self.architecture if _LEVEL.fullmatch(self.architecture) else ""

    def __str__(self) -> str:
        return ":".join(filter(None, (self.device, self.architecture)))
