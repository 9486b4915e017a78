"""What a worker answers, by the keys that cross the process border."""

from __future__ import annotations

from typing import TypedDict


class Built(TypedDict):
    """The answer to ``build``. What the engine is stands in its `EngineSpec`."""

    stages: dict[str, float]
    """Seconds by stage."""
    seconds: float
    """Of the whole command."""
