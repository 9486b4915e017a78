"""Ends what a killed parent leaves behind. Run as a script; imports next to nothing.

Reads ``+PGID "FOLDER"`` and ``-PGID`` lines. Standard input ends when the parent does, however it ends; every
process group that is still listed is then killed, and its folder of temporary files removed. The parent cannot do this
itself after a SIGKILL, and a child that is deep in a compiler does not notice.
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
    for line in sys.stdin:
        group, _, folder = line[1:].partition(" ")
        if line[0] == "+":
            groups[int(group)] = json.loads(folder)
        else:
            groups.pop(int(group), None)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for folder in groups.values():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
