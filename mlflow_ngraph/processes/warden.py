"""Warden: starts and instructs the process that ends our children if we are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from mlflow_ngraph import credentials


@dataclass
class Warden:
    """The process that ends our children if we are killed. See `mlflow_ngraph.processes.warden_child`.

    A killed warden is replaced with the next child.
    """

    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._groups: dict[int, Path | None] = {}
        self._halted: Sequence[int] = ()
        self._start()

    def add(self, group: int, temporary: Path | None = None) -> None:
        """List a process group and the folder of its temporary files, if it has one of its own."""
        self._groups[group] = temporary
        self._write(_listed(group, temporary))

    def remove(self, group: int) -> None:
        """Remove a process group, which has ended."""
        self._groups.pop(group, None)
        self._write(f"-{group}\n")

    def resume_at_end(self, halted: Sequence[int]) -> None:
        """Set the suspended processes, which are resumed at the end."""
        self._halted = tuple(halted)
        self._write(self._said())

    def close(self) -> None:
        """End the warden, which kills the groups still listed."""
        self._pipe.close()
        self.process.wait()

    @property
    def _pipe(self) -> IO[bytes]:
        if self.process.stdin is None:  # pragma: no cover - Popen was given PIPE
            raise RuntimeError("the warden has no pipe")
        return self.process.stdin

    def _start(self) -> None:
        script = Path(__file__).with_name("warden_child.py")
        # Unbuffered: a line that a dead warden did not take must not be written again on close.
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            bufsize=0,
            env=credentials.clean_environment(),
            start_new_session=True,
        )

    def _write(self, line: str) -> None:
        try:
            self._pipe.write(line.encode())
        except BrokenPipeError:
            self.close()
            self._start()
            self._pipe.write("".join([*(_listed(*entry) for entry in self._groups.items()), self._said()]).encode())

    def _said(self) -> str:
        return f"~{' '.join(map(str, self._halted))}\n"


def _listed(group: int, temporary: Path | None) -> str:
    return f"+{group} {json.dumps(None if temporary is None else str(temporary))}\n"
