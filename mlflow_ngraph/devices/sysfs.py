"""Read numbers and words from the kernel's files. None or empty stands for files that cannot be read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def number(path: Path) -> float | None:
    """Number in a file; None if there is none, or if this user may not read it."""
    with suppress(OSError, ValueError):
        return float(path.read_text(encoding="ascii"))
    return None


def text(path: Path) -> str:
    """Stripped text of a file; empty if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip("\x00 \n")
    return ""


def fields(path: Path, *names: str) -> dict[str, float]:
    """Numbers after these words, in a file with a word and a number a line; missing words are left out."""
    numbers = {}
    for line in text(path).splitlines():
        words = line.split()
        name = words[0].rstrip(":") if words else ""
        if name in names and len(words) > 1:
            with suppress(ValueError):
                numbers[name] = float(words[1])
    return numbers
