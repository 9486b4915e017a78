"""OpenVINO's module, and how its values read."""

from __future__ import annotations

import sys
from typing import Any

TELEMETRY = "openvino_telemetry"
"""Importing OpenVINO forks a process that reports the use to a web service, unless this module is missing."""


def library() -> Any:
    """The runtime's module, without its telemetry; also where nobody blocked that before."""
    sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


def text(value: Any) -> str:
    """The bare name of an enumeration's value, such as ``LATENCY``."""
    return f"{value}".rpartition(".")[2]


def optional(compiled: Any, name: str) -> object | None:
    """A property that not every version of the runtime has."""
    if name not in compiled.get_property("SUPPORTED_PROPERTIES"):
        return None
    value: object = compiled.get_property(name)
    return value
