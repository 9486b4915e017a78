"""The device profiles by name."""

from __future__ import annotations

from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.entry_points import Entry, Registry

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
    """The profile called ``name``.

    Raises
    ------
    UnknownNameError
        No profile has this name.
    """
    return DEVICES.get(name)()
