"""Is a figure ever moved by a process that stands still? Real studies whose measuring processes are stopped at random moments.

``python benchmarks/stopped_processes.py [--stops 60] [--seed 1] [--seconds 1,5,20]``, from the root of the repository.

One study of two blocks with three compilers is measured undisturbed, before and after. Then it is measured with SIGSTOP to the
process that computes at a random moment, and SIGCONT after 1, 5 or 20 s, until there were enough stops while slices were
taken. A figure *moved* if throughput or speed-up is outside of both intervals and differs by more than the two undisturbed
studies differ in any cell. A stop is *named* if the remark of a cell has it. Stops between slices change no figure of a slice
and need not be named. Exit code 1: a figure moved, or a slice with a stop in it was kept without a word.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

STUDY = {
    "name": "stopped",
    "workloads": ["block:conv?width=64", "block:mha?width=128"],
    "compilers": ["identity", "onnxruntime", "openvino"],
    "batch_sizes": [8],
    "repetitions": 2000,
    "slice_repetitions": 100,
    "threads": 2,
    "limits": {"slice_seconds": 2.0},
}
FIGURES = ("throughput", "speedup")


def main() -> None:
    """Measure, stop, compare; exit 1 if a figure moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", default="1,5,20")
    options = parser.parse_args()
    lengths, rng = [float(text) for text in options.seconds.split(",")], random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        study = Path(place) / "study.yaml"
        study.write_text(json.dumps(STUDY))
        before, took_s, _ = measured(study, Path(place) / "before", [])
        studies: list[pd.DataFrame] = []
        named = hits = 0
        while hits < options.stops:
            moments = sorted((rng.uniform(0.2, 0.95) * took_s, rng.choice(lengths)) for _ in range(8))
            table, _, stopped = measured(study, Path(place) / f"study-{len(studies)}", moments)
            studies.append(table)
            told = sum(len(event.get("stopped_s", ())) for event in stopped)
            hits, named = hits + len(moments), named + told
            print(f"{hits} stops, {told} of the last {len(moments)} within slices, taken again", flush=True)
        after, _, _ = measured(study, Path(place) / "after", [])
    moved = [line for table in studies for line in differences(before, after, table)]
    print("\n".join(moved))
    print(f"{hits} stops in {len(studies)} studies, {named} within slices and named; {len(moved)} figures moved")
    sys.exit(1 if moved else 0)


def measured(
    study: Path, home: Path, moments: list[tuple[float, float]]
) -> tuple[pd.DataFrame, float, list[dict[str, Any]]]:
    """Measure the study; return its table, its seconds, and its slices.

    Parameters
    ----------
    moments : list[tuple[float, float]]
        Seconds from the beginning, and seconds that the process then stands still.
    """
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", str(study), "--offline", "--home", str(home)]
    started, stood_s = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for at, seconds in moments:
        while process.poll() is None and time.perf_counter() - started - stood_s < at:
            time.sleep(0.01)
        if victim := computing(process.pid):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(seconds)
            stood_s += seconds
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
    if process.wait() not in (0, 3):
        raise RuntimeError(f"the study ended with {process.returncode}")
    (directory,) = (home / "studies").iterdir()
    events = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    slices = [event for event in events if event["event"] == "slice"]
    return pd.read_parquet(directory / "results.parquet"), time.perf_counter() - started - stood_s, slices


def computing(parent: int) -> int | None:
    """The descendant that used most processor time in the last moment; None without one."""
    spent: dict[int, list[float]] = {}
    for wait_s in (0.05, 0.0):
        with suppress(psutil.Error):
            for child in psutil.Process(parent).children(recursive=True):
                with suppress(psutil.Error):
                    spent.setdefault(child.pid, []).append(sum(child.cpu_times()[:2]))
        time.sleep(wait_s)
    grown = {pid: times[1] - times[0] for pid, times in spent.items() if len(times) == 2}
    return max(grown, key=lambda pid: grown[pid], default=None)


def differences(before: pd.DataFrame, after: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Figures of a table that are outside of both undisturbed ones by more than these differ."""
    found = []
    keys = ["label", "compiler_label"]
    whole = [frame.set_index(keys) for frame in (before, after, table)]
    for figure in FIGURES:
        apart = max(abs(math.log(whole[0][figure][key] / whole[1][figure][key])) for key in whole[0].index)
        for key in whole[2].index:
            values = [frame[figure][key] for frame in whole]
            low, high = (f"{figure}_low", f"{figure}_high")
            reach = max(math.log(frame[high][key] / frame[low][key]) for frame in whole)
            nearest = min(abs(math.log(values[2] / value)) for value in values[:2])
            if not nearest <= max(apart, reach):
                found.append(
                    f"{' by '.join(key)}: {figure} {values[2]:.4g}, undisturbed {values[0]:.4g} and {values[1]:.4g}"
                )
    return found


if __name__ == "__main__":
    main()
