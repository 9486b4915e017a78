"""Ends what a killed parent leaves behind. Run as a script; imports next to nothing.

Reads ``+PGID`` and ``-PGID`` lines. Standard input ends when the parent does, however it ends; every
process group that is still listed is then killed. The parent cannot do this itself after a SIGKILL, and a
child that is deep in a compiler does not notice.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Follow the list until the parent is gone."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
