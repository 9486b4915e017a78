"""Import OpenVINO without telemetry, share one `Core` in the process, and read properties."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

TELEMETRY = "openvino_telemetry"
"""Importing OpenVINO forks a process that reports the use to a web service, unless this module is missing."""


def library() -> Any:
    """Import OpenVINO without its telemetry."""
    sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


_cores: list[Any] = []
_making = Lock()


def core() -> Any:
    """The only `openvino.Core` of this process, which lives as long as it does.

    A core that loads the CPU plugin installs an alternate signal stack in that thread, and removes it at its end. With
    several cores, the end of one restores the unmapped stack of another, and the next signal that Python handles, such
    as Ctrl-C, is a segmentation fault.
    """
    with _making:
        if not _cores:
            _cores.append(library().Core())
        return _cores[0]


def text(value: Any) -> str:
    """Bare name of an enumeration's value, such as ``LATENCY``."""
    return f"{value}".rpartition(".")[2]


def optional(compiled: Any, name: str) -> object | None:
    """A property that not every version of the runtime has."""
    if name not in compiled.get_property("SUPPORTED_PROPERTIES"):
        return None
    value: object = compiled.get_property(name)
    return value
