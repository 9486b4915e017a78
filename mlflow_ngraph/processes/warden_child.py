"""Ends what a killed parent leaves behind. Run as a script; imports next to nothing.

Reads ``+PGID "FOLDER"``, ``-PGID`` and ``~PID PID ...`` lines. Standard input ends when the parent does, however it ends; every
process group that is still listed is then killed, its folder of temporary files removed, and the processes of the last line
with ``~``, which the parent may have stopped, go on. The parent cannot do this itself after a SIGKILL, and a child that is deep in
a compiler does not notice.
"""

import contextlib
import json
import os
import shutil
import signal
import sys


def main() -> None:
    """Follow the list until the parent is gone."""
    groups: dict[int, str] = {}
    halted: list[int] = []
    for line in sys.stdin:
        if line[0] == "~":
            halted = [int(pid) for pid in line[1:].split()]
            continue
        group, _, folder = line[1:].partition(" ")
        if line[0] == "+":
            groups[int(group)] = json.loads(folder)
        else:
            groups.pop(int(group), None)
    for pid in halted:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for folder in groups.values():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
