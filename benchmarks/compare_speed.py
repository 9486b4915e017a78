"""How long ``compare`` takes on a server with many studies, how much memory, and whether its numbers are the right ones.

    python benchmarks/seed_server.py sqlite:////tmp/seeded/mlflow.db --studies 200
    python benchmarks/compare_speed.py sqlite:////tmp/seeded/mlflow.db

Cold is a fresh process with nothing kept on this machine, warm a fresh process afterwards with the same question, and other
one with a question that was not asked before; all include starting Python. The warm call is the same within a process that
has imported everything. The numbers are compared with those of a walk over
all lane runs with ``MlflowClient.search_runs``, which takes minutes on a large server; ``--no-walk`` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from mlflow_ngraph.tracking.connection import is_server

BATCH = 32
"""The largest batch size of the seeded studies: the only point of a curve that a search shows."""
FAMILIES = ("ResNet", "DeiT", "Swin")
ARGUMENTS = ("--families", ",".join(FAMILIES), "--rows", "label", "--columns", "device,compiler")
SERVER = {"max_cold_s": 3.0, "max_warm_s": 0.5, "max_memory_mb": 300.0}
DATABASE = {"max_cold_s": 6.0, "max_warm_s": 5.0, "max_memory_mb": 400.0}
"""Bounds where nobody gives others: a database is asked with MLflow's own client, whose import alone takes over a second."""
Numbers = dict[tuple[str, str, str], float]


def command(uri: str, cache: Path, batch: int = BATCH) -> tuple[float, float, dict[str, Any]]:
    """Seconds, largest resident MB and what was printed, of one fresh process."""
    asked = ("--tracking-uri", uri, "--batch-sizes", str(batch), *ARGUMENTS)
    line = [sys.executable, "-m", "mlflow_ngraph", "compare", *asked, "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"compare ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024 / 1e6, json.loads(printed)


def call(uri: str, times: int) -> float:
    """Median seconds of reading and comparing within this process, with everything kept and imported."""
    from mlflow_ngraph.analysis import results
    from mlflow_ngraph.analysis.compare import compare, needed
    from mlflow_ngraph.analysis.selection import Selection

    rows, columns = ("label",), ("device", "compiler")
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        frame = results.select(Selection(), uri, columns=needed(rows, columns, "throughput"))
        compare(frame, rows=rows, columns=columns, batch_sizes=[BATCH], families=FAMILIES)
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def walk(uri: str) -> Numbers:
    """The same comparison from nothing but runs: the newest of each lane, and of those that are ok the best."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    newest: dict[str, Any] = {}
    token = None
    while True:
        page = client.search_runs(experiments, "tags.`ngraph.kind` = 'lane'", max_results=1000, page_token=token)
        for run in page:
            lane = run.data.tags["ngraph.lane_id"]
            if lane not in newest or run.info.start_time > newest[lane].info.start_time:
                newest[lane] = run
        token = page.token
        if not token:
            break
    found: Numbers = {}
    for run in newest.values():
        verdict = json.loads(run.data.tags["ngraph.verdicts"])[str(BATCH)]
        if verdict == "ok" and run.data.params["family"] in FAMILIES:
            key = run.data.params["model"], run.data.params["device"], run.data.params["compiler"]
            found[key] = max(found.get(key, 0.0), run.data.metrics["batch/throughput"])
    return found


def main() -> None:
    """Measure, print, and fail where a bound is not kept."""
    parser = argparse.ArgumentParser(description="Time and check compare on a seeded server.")
    parser.add_argument("uri")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-walk", action="store_true")
    parser.add_argument("--max-cold-s", type=float)
    parser.add_argument("--max-warm-s", type=float)
    parser.add_argument("--max-memory-mb", type=float)
    options = parser.parse_args()
    for name, limit in (SERVER if is_server(options.uri) else DATABASE).items():
        if getattr(options, name) is None:
            setattr(options, name, limit)
    cold, warm, other = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.repeat):
            cache = Path(directory, str(number))
            cold.append(command(options.uri, cache))
            warm.append(command(options.uri, cache))
            other.append(command(options.uri, cache, BATCH // 2))
        os.environ["XDG_CACHE_HOME"] = str(cache)
        in_process = call(options.uri, options.repeat)
    found = {
        "cold_s": median(seconds for seconds, _, _ in cold),
        "warm_s": median(seconds for seconds, _, _ in warm),
        "other_s": median(seconds for seconds, _, _ in other),
        "warm_call_s": in_process,
        "memory_mb": max(memory for _, memory, _ in [*cold, *warm, *other]),
        "numbers": len(cold[0][2]["values"]),
    }
    problems = []
    for name, limit in (
        ("cold_s", options.max_cold_s),
        ("warm_s", options.max_warm_s),
        ("memory_mb", options.max_memory_mb),
    ):
        if found[name] > limit:
            problems.append(f"{name}: {found[name]:.3g}, at most {limit:g} wanted")
    if not options.no_walk:
        start = time.perf_counter()
        expected = walk(options.uri)
        found["walk_s"] = time.perf_counter() - start
        found["walk_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        for _, _, printed in [*cold, *warm]:
            shown = {(one["label"], one["device"], one["compiler"]): one["value"] for one in printed["values"]}
            if shown != expected:
                problems.append("the numbers are not those of the walk")
        found["identical"] = "the numbers are not those of the walk" not in problems
    print(json.dumps(found, indent=2))
    if problems:
        raise SystemExit("; ".join(dict.fromkeys(problems)))


if __name__ == "__main__":
    main()
