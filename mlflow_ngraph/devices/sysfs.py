"""Numbers and words in the kernel's files. What cannot be read is None or empty: machines differ in what they tell."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def number(path: Path) -> float | None:
    """The number that a file holds; None if there is none, or if this user may not read it."""
    with suppress(OSError, ValueError):
        return float(path.read_text(encoding="ascii"))
    return None


def text(path: Path) -> str:
    """What a file holds, without surrounding blanks; empty if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip("\x00 \n")
    return ""


def fields(path: Path, *names: str) -> dict[str, float]:
    """The numbers behind these words, in a file with a word and a number a line; without those that it lacks."""
    numbers = {}
    for line in text(path).splitlines():
        words = line.split()
        name = words[0].rstrip(":") if words else ""
        if name in names and len(words) > 1:
            with suppress(ValueError):
                numbers[name] = float(words[1])
    return numbers
