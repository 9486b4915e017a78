"""Does a process that stands still move a figure? Real studies, whose processes are stopped at random moments.

``python benchmarks/stopped_processes.py [--stops 60] [--each 20] [--seed 1] [--seconds 1,5,20]``

A study of one block with two compilers and one rate of arrivals is measured undisturbed and with ``--each`` stops, in
turns. At a random moment a process of it gets SIGSTOP, and SIGCONT after some seconds: three times of four the one that
computes, else its parent or the warden, for five seconds.

A figure *moved* if its interval is apart from those of all undisturbed studies by more than these differ among themselves: an
engine stays in one process, whose luck is in no interval. A stop was *kept* if the journal has it
in a repetition, a request, a load or a compile time: one that is longer by three quarters
of a second, without a word of it.
Exit code 1: a figure moved, a stop was kept, or a cell is not ok.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.processes.stops import AGAIN

STUDY = {
    "name": "stopped",
    "workloads": ["block:mha?width=16"],
    "compilers": ["identity", "onnxruntime"],
    "batch_sizes": [4],
    "repetitions": 1_000_000,
    "slice_repetitions": 5000,
    "threads": 1,
    "warmup": {"max_seconds": 1},
    "limits": {"slice_seconds": 1, "cell_seconds": 20, "reload_seconds": 0, "verify_seconds": 2},
    "arrivals": {"rates": 50, "seconds": 15},
}
WITH_INTERVAL = ("throughput", "speedup", "latency_p50_ms", "cpu_reduction")
WITHOUT = ("compile_total_s", "load_s", "first_inference_s")
LONGER_S = 0.75
OTHERS_S = 5.0
"""Length of a stop of the parent, or of the warden."""
Figures = dict[tuple[str, str], tuple[float, float, float]]


def main() -> int:
    """Measure, stop, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=60)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", default="1,5,20")
    options = parser.parse_args()
    lengths, rng = [float(text) for text in options.seconds.split(",")], random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="ngraph-stopped-") as place:
        root, quiet, stopped, problems, seen = Path(place), [], [], [], Counter[str]()
        (root / "study.yaml").write_text(json.dumps(STUDY))
        study, took_s, _ = measured(root, "quiet-0", [], rng)
        quiet.append(figures(study))
        delivered = 0
        while delivered < options.stops:
            number = len(quiet)
            moments = sorted((rng.uniform(0.05, 0.95) * took_s, rng.choice(lengths)) for _ in range(options.each))
            study, _, hit = measured(root, f"stopped-{number}", moments, rng)
            stopped.append(figures(study))
            delivered += len(hit)
            seen.update((*hit, *named(study)))
            problems += [f"study {number}: {problem}" for problem in problems_of(study)]
            study, took_s, _ = measured(root, f"quiet-{number}", [], rng)
            quiet.append(figures(study))
            print(f"study {number}: {dict(seen)}, {len(problems)} problems", flush=True)
    longest = {key: max(own[key][0] for own in quiet) for key in quiet[0] if key[1] in WITHOUT}
    for number, own in enumerate(stopped, start=1):
        kept = [key for key in longest if key in own and own[key][0] > longest[key] + LONGER_S]
        moved = [key for key in own if key[1] in WITH_INTERVAL and apart(own[key], [other[key] for other in quiet])]
        for key in (*moved, *kept):
            known = [other[key][0] for other in quiet]
            problems.append(f"study {number}: {' '.join(key)} is {own[key]}, undisturbed {known}")
    count = sum(key[1] in WITH_INTERVAL for own in stopped for key in own)
    print(*problems, sep="\n")
    print(f"{delivered} stops in {len(stopped)} studies, {len(problems)} problems; {count} figures with an interval")
    return int(bool(problems))


def measured(
    root: Path, name: str, moments: list[tuple[float, float]], rng: random.Random
) -> tuple[Path, float, list[str]]:
    """Measure the study; return its directory, its seconds without stops, and what was stopped.

    Parameters
    ----------
    moments : list[tuple[float, float]]
        Seconds from the beginning, and seconds that a process then stands still.
    """
    command = [
        sys.executable,
        "-m",
        "mlflow_ngraph",
        "benchmark",
        str(root / "study.yaml"),
        "--offline",
        "--cache",
        "off",
    ]
    started, stood_s, hit = time.perf_counter(), 0.0, []
    process = subprocess.Popen(
        [*command, "--home", str(root / name)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    for at, seconds in moments:
        while process.poll() is None and time.perf_counter() - started - stood_s < at:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        kind = rng.choice(["computing"] * 6 + ["parent", "warden"])
        if victim := process.pid if kind == "parent" else found(process.pid, kind):
            length = seconds if kind == "computing" else OTHERS_S
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGSTOP)
                time.sleep(length)
                os.kill(victim, signal.SIGCONT)
                hit.append(f"{kind} stopped")
            stood_s += length
    said = process.communicate()[1]
    if process.returncode not in (0, 3):
        raise SystemExit(f"the study ended with {process.returncode}: {said.decode()[-500:]}")
    (directory,) = (root / name / "studies").iterdir()
    return directory, time.perf_counter() - started - stood_s, hit


def found(parent: int, kind: str) -> int | None:
    """The warden, or the descendant that used most processor time in the last moment; None without one."""
    spent: dict[int, list[float]] = {}
    for wait_s in (0.05, 0.0):
        with suppress(psutil.Error):
            for child in psutil.Process(parent).children(recursive=True):
                with suppress(psutil.Error):
                    if kind == "warden" and "warden_child" in " ".join(child.cmdline()):
                        return child.pid
                    spent.setdefault(child.pid, []).append(sum(child.cpu_times()[:2]))
        time.sleep(wait_s)
    grown = {pid: times[1] - times[0] for pid, times in spent.items() if len(times) == 2}
    return max(grown, key=lambda pid: grown[pid], default=None) if kind == "computing" else None


def figures(study: Path) -> Figures:
    """Figures of each cell with their intervals, by cell and name."""
    return {
        (f"{lane.lane.compiler_label} b{cell.batch}", name): (
            cell.metrics[name],
            cell.metrics.get(f"{name}_ci_low", cell.metrics[name]),
            cell.metrics.get(f"{name}_ci_high", cell.metrics[name]),
        )
        for lane in replay.load(study).lanes.values()
        for cell in lane.cells.values()
        for name in (*WITH_INTERVAL, *WITHOUT)
        if name in cell.metrics
    }


def apart(own: tuple[float, float, float], quiet: Sequence[tuple[float, float, float]]) -> bool:
    """Return True when an interval is farther from all others than their figures are from each other."""
    differ = max(value for value, _, _ in quiet) - min(value for value, _, _ in quiet)
    return all(own[1] > high + differ or own[2] < low - differ for _, low, high in quiet)


def named(study: Path) -> Iterator[str]:
    """The kind of each event, once for each stop that it names."""
    for event in events(study):
        yield from [f"{event['event']} named"] * len(event.get("stopped_s", ()))


def problems_of(study: Path) -> Iterator[str]:
    """Stops that are in repetitions or requests which count, and cells that are not ok."""
    for event in events(study):
        lengths = event.get("durations_ns") or event.get("served_ns")
        if lengths and len(event.get("stopped_s", ())) < AGAIN:
            over_s = (max(lengths) - statistics.median(lengths)) / 1e9
            if over_s > LONGER_S:
                yield f"{event['event']} of {event['cell']} has one that is {over_s:.2f} s longer"
        if event["event"] == "cell_finished" and event["verdict"] != "ok":
            yield f"{event['cell']} is {event['verdict']}: {event['reason']}"


def events(study: Path) -> list[dict[str, Any]]:
    """Events of the journal."""
    return list(journal.read(study))


if __name__ == "__main__":
    sys.exit(main())
