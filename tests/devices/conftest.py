from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a tool on the path that prints a text and exits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name: str, output: str, code: int = 0) -> None:
        (folder / f"{name}.txt").write_text(output)
        tool = folder / name
        tool.write_text(f"#!/bin/sh\ncat '{folder / name}.txt'\nexit {code}\n")
        tool.chmod(0o755)

    return make
