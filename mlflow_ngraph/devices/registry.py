"""Registry of device profiles; their accelerators, and warnings about processors that do not fit."""

from __future__ import annotations

from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.entry_points import Entry, Registry
from mlflow_ngraph.errors import DependencyError, UnknownNameError

_HERE = "mlflow_ngraph.devices.profiles"

DEVICES: Registry[DeviceProfile] = Registry(
    "device",
    "mlflow_ngraph.devices",
    {
        "xeon": Entry(f"{_HERE}:Xeon"),
        "gpu": Entry(f"{_HERE}:Gpu"),
        "orin": Entry(f"{_HERE}:Orin"),
        "host": Entry(f"{_HERE}:Host"),
    },
)


def create(name: str) -> DeviceProfile:
    """Create a device profile by name. Raises `UnknownNameError` for an unknown profile."""
    return DEVICES.get(name)()


def accelerator(profile: str) -> str:
    """Accelerator of a profile; for a profile that is not installed here, its name."""
    kind = _recorded(profile)
    return profile if kind is None else kind.accelerator


def misfit(profile: str, processor: str) -> str:
    """Warn of figures of a profile that does not fit the processor; empty where it fits."""
    kind = _recorded(profile)
    if kind is None or not processor or kind.processor in processor:
        return ""
    return f"{profile} is no {kind.processor} but {processor}: its figures are those of this processor"


def _recorded(profile: str) -> type[DeviceProfile] | None:
    """The profile that a study names; None where its package is not installed here."""
    try:
        return DEVICES.get(profile)
    except (UnknownNameError, DependencyError):
        return None
