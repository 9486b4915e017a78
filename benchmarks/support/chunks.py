"""Work that may crash its process: children do many items each, and one that crashes or hangs costs its item."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SECONDS = 240.0
"""An item that takes longer hangs."""
ITEMS = 25


def results(
    script: str, items: Sequence[str], *arguments: str, beside: int = 2
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What ``script ARGUMENTS --child``, which calls `serve`, says of each item; of one that broke it, ``broke`` says how."""
    parts = [items[start : start + ITEMS] for start in range(0, len(items), ITEMS)]
    told: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    def run(part: Sequence[str]) -> None:
        for found in _of_part(script, part, arguments):
            told.put(found)

    with ThreadPoolExecutor(beside) as pool:
        for part in parts:
            pool.submit(run, part)
        for _ in items:
            yield told.get()


def _of_part(script: str, items: Sequence[str], arguments: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    pending = list(items)
    while pending:
        process = subprocess.Popen(
            [sys.executable, script, *arguments, "--child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        with process.stdin as asked:
            asked.write("\n".join(pending))
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_listen, args=(process, lines), daemon=True).start()
        try:
            while pending and (line := lines.get(timeout=SECONDS)):
                yield pending.pop(0), json.loads(line)
        except queue.Empty:
            process.kill()
        code = process.wait()
        if pending:
            yield pending.pop(0), {"broke": f"crashed with signal {-code}" if code != -9 else "hung, or was killed"}


def _listen(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def serve(work: Callable[[str], dict[str, Any]]) -> None:
    """Do the items that come on standard input, in a child; never returns."""
    # Compilers write to standard output what they like; what the parent reads is another descriptor.
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)
        for item in sys.stdin.read().split():
            print(json.dumps(work(item)), file=parent, flush=True)
        # Runtimes that crash when they are torn down are not what is asked about.
        os._exit(0)
