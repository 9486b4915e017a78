# ruff: noqa: T201 - a log is how a job speaks
"""In place of a study on a device: says what a scenario wants, in the time that a process takes.

Run as a script it is such a study; `interpreter` makes what a description of a fleet names as a device's Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, os.environ["SCRIPTED_FROM"])

from mlflow_ngraph_fleet import wire

MARKER = "died-once"
LANE = {"id": "lane", "label": "net", "compiler_label": "identity", "precision": "fp32"}


def interpreter(directory: Path) -> str:
    """A program that starts jobs as Python does, and is the scripted study when it is asked for a real one."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "python"
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = launch.py ]; then exec "{sys.executable}" "$@"; fi\n'
        f'SCRIPTED_FROM="{Path.cwd()}" exec "{sys.executable}" "{Path(__file__).resolve()}"\n'
    )
    path.chmod(0o755)
    return str(path)


def main() -> int:
    """Play a scenario: what the device's variable SCENARIO says."""
    job = json.loads(Path("job.json").read_text())
    scenario, home = os.environ.get("SCENARIO", "ok"), Path(job["home"])
    (home / "environment.json").write_text(json.dumps(dict(os.environ)))
    print("a line for people", flush=True)
    print(wire.line("session_started", study_id="scripted", name="scripted", lanes=[LANE], cells=2, done=0), flush=True)
    if scenario == "dies once" and not (home / MARKER).exists():
        (home / MARKER).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if scenario == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if scenario == "sleeps":
        ended = []
        signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
        while not ended:
            time.sleep(0.02)
        print(wire.line("ended", code=143, reason="interrupted"), flush=True)
        return 143
    if scenario == "refuses":
        print(wire.line("ended", code=2, reason="device 'orin' needs an NVIDIA Jetson"), flush=True)
        return 2
    if scenario == "measures":
        with (home / "measured").open("a") as file:
            print(job["fleet_study"], "begin", file=file, flush=True)
            time.sleep(0.5)
            print(job["fleet_study"], "end", file=file, flush=True)
    for batch in (1, 2):
        cell = f"lane-b{batch}"
        print(wire.line("cell_finished", cell=cell, lane="lane", batch=batch, verdict="ok"), flush=True)
    print(wire.line("ended", code=0, reason="", study_id="scripted"), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
