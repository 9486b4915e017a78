"""Kill the children of an ended parent, resume suspended processes, delete temporary folders. Run as a script.

Imports next to nothing.

Reads ``+PGID "FOLDER"`` or ``+PGID null``, ``-PGID`` and ``~PID PID ...`` lines. At the end of input, with which the parent ended, it
resumes the processes of the last ``~`` line, which the parent may have suspended, kills the listed process groups and
deletes their folders. The parent cannot do this after a SIGKILL, and a child deep in a compiler does not notice.
"""

import contextlib
import json
import os
import shutil
import signal
import sys


def main() -> None:
    """Read the list until the parent is gone."""
    groups: dict[int, str | None] = {}
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
    for folder in filter(None, groups.values()):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
