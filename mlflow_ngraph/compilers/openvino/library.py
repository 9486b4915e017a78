"""OpenVINO's module, and how its values read."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

TELEMETRY = "openvino_telemetry"
"""Importing OpenVINO forks a process that reports the use to a web service, unless this module is missing."""


def library() -> Any:
    """The runtime's module, without its telemetry; also where nobody blocked that before."""
    sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    import openvino

    return openvino


_cores: list[Any] = []
_making = Lock()


def core() -> Any:
    """The only `openvino.Core` of this process, which lives as long as it does.

    A core that has loaded the CPU plugin gives the thread that did so an alternate stack for signals, and takes it away at its
    own end. With several, the stack of one is put back in force by the end of another after it has been unmapped, and the next
    signal that Python handles, Ctrl-C among them, is a segmentation fault.
    """
    with _making:
        if not _cores:
            _cores.append(library().Core())
        return _cores[0]


def text(value: Any) -> str:
    """The bare name of an enumeration's value, such as ``LATENCY``."""
    return f"{value}".rpartition(".")[2]


def optional(compiled: Any, name: str) -> object | None:
    """A property that not every version of the runtime has."""
    if name not in compiled.get_property("SUPPORTED_PROPERTIES"):
        return None
    value: object = compiled.get_property(name)
    return value
