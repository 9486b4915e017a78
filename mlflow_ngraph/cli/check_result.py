"""Result of a check of ``mlflow-ngraph doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class CheckResult:
    """Result of a check."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    """Remedy; empty where none is needed."""
