"""Find the directories of this process's control groups; `memory` and `processors` read limits in them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Directories of this process's group and of all groups above it, of control groups v2 and v1.

    ``controller`` is ``cpu`` or ``memory``; version 1 has a hierarchy for each.
    """
    directories: list[Path] = []
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        group = top / path.lstrip("/")
        directories += [group, *(parent for parent in group.parents if parent == top or top in parent.parents)]
    return [*dict.fromkeys(directories)]
