"""What a follower is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow_ngraph_serve.settings import Settings


@dataclass(frozen=True)
class Wanted:
    """Whom to follow, and how."""

    name: str
    """Of the registered model."""
    alias: str
    tracking_uri: str
    directory: Path
    """What is kept goes there."""
    device: str
    """What this machine is called in tags."""
    every_s: float
    """From one look at the alias to the next."""
    trust: str | None = None
    again: bool = False
    """Try once more what was refused."""
    served_name: str = ""
    """Of the model for clients."""
    settings: Settings | None = None
    """How to serve; None: engines are brought, and not served."""
    watch_s: float = 60.0
    """How long a new engine is watched before the old one ends."""
