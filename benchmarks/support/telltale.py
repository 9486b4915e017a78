"""Factories of models that tell every secret that they know, as text of errors and on standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import torch
from torch import nn

PLANTED = "NGRAPH_PLANTED"
"""Variable that names the file with the secrets, by kind."""


def _told() -> str:
    """Everything that a careless library could print."""
    planted = json.loads(Path(os.environ[PLANTED]).read_text())
    variables = " ".join(f"{name} is {value}" for name, value in os.environ.items() if "zqS" in value)
    return (
        f"{variables} https://anna:{planted['address']}@db.lab/x?sig={planted['signature']} Authorization: Basic {planted['header']} "
        f"Bearer {planted['bearer']} password={planted['pair']} {planted['github']} {planted['jwt']} {planted['pem']}"
    )


class Telltale(nn.Module):  # type: ignore[misc]
    """Prints when it is called, and refuses to be exported."""

    def __init__(self, exports: bool) -> None:
        super().__init__()
        self.layer, self.exports = nn.Linear(8, 4), exports

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One matrix product."""
        if torch.compiler.is_compiling():
            if not self.exports:
                raise RuntimeError(_told())
        else:
            print(_told())
        return cast(torch.Tensor, self.layer(x))


def printing(token: str, database: str) -> nn.Module:
    """Runs, and prints its keywords."""
    print(token, database, _told())
    return Telltale(exports=True)


def unexportable(token: str, database: str) -> nn.Module:
    """Runs where nothing is exported."""
    return Telltale(exports=False)


def failing(token: str, database: str) -> nn.Module:
    """Raises what it was given."""
    raise ConnectionError(f"{token} {database} {_told()}")
