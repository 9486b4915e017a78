"""What the engine cache saves: the same study twice in one home, then in a new home that pulls from the server.

``python benchmarks/engine_cache.py [STUDY] [--only WORKLOAD,...] [--keep DIRECTORY]``

Everything is new: the homes, and a tracking server of its own (SQLite, files served over HTTP). For each run it prints
the wall time, what of it was timed or warm-up, the rest, and the compilations; then the rest as a share of the first
run's. A first inference counts as warm-up where it was the whole warm-up, because it took longer than a warm-up may.
Exit code 1: a later run compiled something.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.server import tracking_server
from support.spans import covered


@dataclass(frozen=True)
class Run:
    """Where the time of one run went, in seconds."""

    wall: float
    timed: float
    warm_up: float
    build: float
    """While anything was prepared, compiled or verified."""
    load: float
    record: float
    compilations: int
    reused: int
    problems: list[str]

    @property
    def rest(self) -> float:
        """All but timed loops and warm-up."""
        return self.wall - self.timed - self.warm_up


def main() -> None:
    """Run three times and print what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="quick")
    parser.add_argument("--only", default="", help="workloads instead of the study's own")
    parser.add_argument("--keep", type=Path, help="an empty or new directory in which everything stays")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with place as directory, tracking_server(Path(directory), workers=1) as uri:
        runs = {}
        for name, home, cache in (
            ("first run", "one", "local"),
            ("second run", "one", "local"),
            ("new home, from the server", "two", "server"),
        ):
            runs[name] = _run(options.study, options.only, Path(directory, home), uri, cache)
            _show(name, runs[name], runs["first run"])
    sys.exit(1 if any(run.compilations for name, run in runs.items() if name != "first run") else 0)


def _show(name: str, run: Run, first: Run) -> None:
    print(
        f"{name}: wall {run.wall:.1f} s, timed loops {run.timed:.1f} s, warm-up {run.warm_up:.1f} s, "
        f"rest {run.rest:.1f} s ({100 * run.rest / first.rest:.1f} % of the first run's); "
        f"{run.compilations} compilations, {run.reused} engines reused\n"
        f"  of the rest: preparing, compiling and verifying {run.build:.1f} s, loading {run.load:.1f} s, recording "
        f"{run.record:.1f} s, processes and all else "
        f"{run.rest - run.build - run.load - run.record:.1f} s",
        flush=True,
    )
    for problem in run.problems:
        print(f"  {problem}", flush=True)


def _run(study: str, only: str, home: Path, uri: str, cache: str) -> Run:
    """Run the study in a process of its own, as a person would, and read its journal."""
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", study, "--home", str(home), "--fresh"]
    command += ["--tracking-uri", uri, "--cache", cache, *(["--workloads", only] if only else [])]
    # What this machine found out about the models of earlier studies is nothing that a first run has.
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(home / "user-cache")}
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    wall = time.perf_counter() - begin
    if done.returncode not in (0, 3):
        sys.exit(f"the study ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    directory = max((home / "studies").iterdir(), key=lambda path: path.stat().st_ctime)
    events = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    return _account(events, wall)


def _account(events: list[dict[str, Any]], wall: float) -> Run:
    timed = warm_up = load = record = 0.0
    ready: dict[str, dict[str, Any]] = {}
    before = 0.0
    for event in events:
        kind = event["event"]
        if kind == "slice":
            timed += event["wall_s"]
            warm_up += event["settle_s"]
        elif kind == "cell_ready":
            ready[event["cell"]] = event
        elif kind == "cell_finished" and event["cell"] in ready:
            found, first = event["warm_up"], ready[event["cell"]]["first_inference_s"]
            whole = found.get("repetitions") == 0
            warm_up += found.get("seconds", 0.0) + (first if whole else 0.0)
            load += sum(ready[event["cell"]][name] for name in ("load_s", "verify_s")) + (0.0 if whole else first)
        elif kind == "lane_recorded":
            record += event["at"] - before
        before = event["at"]
    built = [event for event in events if event["event"] == "engine_built"]
    lanes = {lane["id"]: lane["compiler"] for lane in events[0]["lanes"]}
    # PyTorch eager, the baseline, compiles nothing: its engine is the model itself.
    return Run(
        wall=wall,
        timed=timed,
        warm_up=warm_up,
        build=covered((event["started_at"], event["at"]) for event in events if event["event"] == "process_ended"),
        load=load,
        record=record,
        compilations=sum(not event["reused"] and lanes[event["lane"]] != "identity" for event in built),
        reused=sum(bool(event["reused"]) for event in built),
        problems=[event["reason"] for event in events if event["event"] == "cache_problem"],
    )


if __name__ == "__main__":
    main()
