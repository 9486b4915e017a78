"""Whether anything of an engine was loaded or run: what the interpreter audits, and what adapters are asked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_WITH_PATH = (
    "ctypes.dlopen",
    "import",
    "exec",
    "compile",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.system",
)


class Watch:
    """Notes every load from below a folder, from when it is made to the end of the process.

    Parameters
    ----------
    folder : Path
        Where everything lies that is not to be loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)
        from mlflow_ngraph.compilers.registry import COMPILERS

        for name in ("onnxruntime", "identity"):
            COMPILERS.get(name).load = self._asked  # type: ignore[method-assign, assignment]

    def __enter__(self) -> Watch:
        self.seen.clear()
        self._on = True
        return self

    def __exit__(self, *_: object) -> None:
        self._on = False

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event == "pickle.find_class" or (event in _WITH_PATH and self._folder in _shown(given)):
            self.seen.append(f"{event} {_shown(given)[:200]}")

    def _asked(self, *given: object) -> None:
        self.seen.append(f"an adapter was asked to load {given[1:2]}")
        raise RuntimeError("loaded")


def _shown(given: tuple[Any, ...]) -> str:
    """What an event is about; nothing of what it is about is asked for more than that."""
    return " ".join(os.fsdecode(one) if isinstance(one, bytes | os.PathLike) else str(one)[:2000] for one in given)
