"""Whether a study keeps to its time: budgets of one, three and ten minutes, from an empty home and with what it learned.

``python benchmarks/budgets.py [--minutes 1,3,10] [STUDY] [--workloads REF,...] [--purpose decide] [--keep DIRECTORY]``

Each budget is given to a command of its own, as a person gives it, first with nothing known of the machine (``cold``), then
once more with what that left: durations, and engines in the cache (``warm``). Printed is how long the command took, what was
measured, and what was left out. Exit code 1: a command took more than 110 % of its time, or less than 90 % of it and left
something out for lack of time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

SHORT, LONG = 0.9, 1.1


def main() -> int:
    """Run, print, and hold against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="quick")
    parser.add_argument("--minutes", default="1,3,10")
    parser.add_argument("--workloads")
    parser.add_argument("--purpose", default="decide")
    parser.add_argument("--keep", type=Path, help="a folder in which the homes stay")
    options = parser.parse_args()
    asked = [options.study, "--purpose", options.purpose]
    asked += ["--workloads", options.workloads] if options.workloads else []
    missed = 0
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with place as folder:
        for minutes in map(float, options.minutes.split(",")):
            home = Path(folder) / f"within-{minutes:g}"
            for state in ("cold", "warm"):
                missed += _missed(state, minutes, *_run(asked, minutes, home))
    return int(missed > 0)


def _run(asked: list[str], minutes: float, home: Path) -> tuple[float, dict[str, Any]]:
    """The seconds that a command takes, and what it says."""
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", *asked, "--within", f"{60 * minutes:g}s"]
    command += ["--home", str(home), "--tracking-uri", f"sqlite:///{home}.db", "--fresh", "--json"]
    home.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ})
    seconds = time.monotonic() - began
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    said: dict[str, Any] = json.loads(done.stdout)
    return seconds, said


def _missed(state: str, minutes: float, seconds: float, said: dict[str, Any]) -> bool:
    share = seconds / (60 * minutes)
    lacking = [cell for cell in said["left_out"].values() if not cell["final"]]
    endings = ", ".join(f"{race['workload']} {race['ending']}" for race in said["races"].values()) or "no races"
    missed = share > LONG or (bool(lacking) and share < SHORT)
    print(
        f"{minutes:g} min {state}: {seconds:.0f} s ({100 * share:.0f} %), {len(said['rows'])} cells measured, "
        f"{len(lacking)} left out for lack of time; {endings}{'   missed' if missed else ''}",
        flush=True,
    )
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
