"""FollowerOptions: dataclass of a follower's alias, server, folder, interval, trust and serving settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow_ngraph_serve.settings import Settings


@dataclass(frozen=True)
class FollowerOptions:
    """The alias to follow, and how."""

    name: str
    """Name of the registered model."""
    alias: str
    tracking_uri: str
    directory: Path
    """Folder of its state."""
    device: str
    """Name of this machine in tags."""
    every_s: float
    """Interval between two lookups of the alias."""
    trust: str | None = None
    run: bool = False
    """Let engines that are programs run although no rule allows them."""
    home: Path | None = None
    """Home with the rules and consents; None: the default one."""
    again: bool = False
    """Try refused versions again."""
    other_interface: bool = False
    """Take versions with another workload, or other inputs or outputs than the good engine."""
    served_name: str = ""
    """Name of the model for clients."""
    settings: Settings | None = None
    """Options of the server; None: engines are pulled and not served."""
    watch_s: float = 60.0
    """Trial period of a new engine, before the old one ends."""
