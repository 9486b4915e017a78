"""Target devices for cross-compilation, such as ``gpu:sm89``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlflow_ngraph.errors import DeviceError

_GPU = re.compile(r"sm_?(\d+)(\d)")
_LEVEL = re.compile(r"x86-64-v[1-4]")


@dataclass(frozen=True)
class BuildTarget:
    """A target device that the compiler does not see."""

    device: str
    """Name of the device profile."""
    architecture: str = ""
    """Architecture: ``sm89`` for a GPU, ``x86-64-v3`` for a processor; empty where it does not matter."""

    @classmethod
    def parse(cls, text: str) -> BuildTarget:
        """Read the form ``DEVICE`` or ``DEVICE:ARCHITECTURE``, such as ``gpu:sm89``. Raises `DeviceError` for an
        unknown architecture.
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
        """Compute capability of the GPU; None where the architecture is not a GPU's."""
        match = _GPU.fullmatch(self.architecture)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def level(self) -> str:
        """Lowest level of x86-64 of the processor; empty where none is given."""
        return self.architecture if _LEVEL.fullmatch(self.architecture) else ""

    def __str__(self) -> str:
        return ":".join(filter(None, (self.device, self.architecture)))
