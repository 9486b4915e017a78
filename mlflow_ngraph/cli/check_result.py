"""What a check of ``mlflow-ngraph doctor`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class CheckResult:
    """What a check saw."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    """What to do about it; empty when there is nothing to do."""
