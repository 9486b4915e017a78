"""How long ``pull`` takes to say which engine it would bring, on a server with 10,000 lane runs.

    python benchmarks/pull_question.py
    python benchmarks/pull_question.py --uri http://tracking:5000

Without ``--uri`` the script fills a store as ``seed_server.py`` does and serves it. A small study is measured into the
server besides, so that there are engines. Asked is in fresh processes, from the start of Python to its end: for the
engines of that study among all results, without what this machine keeps (cold) and with it (warm). The exit code is 1
if the median of the warm ones is above the bar, or if the answer is not the best engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from seed_server import seed
from support.server import QUIET, tracking_server

STUDIES = 200
EXPERIMENT = "pull-question"
WORKLOAD = "block:mha?width=16"
MAX_WARM_S = 1.0


@contextmanager
def seeded(home: Path, studies: int) -> Iterator[str]:
    """A server with many studies, which serves their tables itself."""
    store = f"sqlite:///{home / 'mlflow.db'}"
    from mlflow import MlflowClient

    artifacts = home / "artifacts"
    artifacts.mkdir()
    MlflowClient(store).create_experiment("seeded", artifact_location=f"{artifacts.as_uri()}/seeded")
    lanes = seed(store, studies)
    # They were written as files of this machine, and are read by way of the server.
    with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            change = f"UPDATE {table} SET {column} = replace({column}, ?, 'mlflow-artifacts:')"  # noqa: S608 - constants
            database.execute(change, (artifacts.as_uri(),))
    print(f"seeded {lanes} lane runs", file=sys.stderr)
    with tracking_server(home) as uri:
        yield uri


def measured(uri: str, home: Path) -> str:
    """Measure a small study into the server, and return the model with the highest throughput."""
    from mlflow_ngraph import load_results, run_study
    from mlflow_ngraph.study import parse

    study = parse(
        {
            "name": EXPERIMENT, "workloads": [WORKLOAD], "compilers": ["onnxruntime", "openvino"],
            "batch_sizes": [1, 8], "repetitions": 10, "threads": 2,
            "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9},
        }
    )  # fmt: skip
    outcome = run_study(study, home=home, tracking_uri=uri, experiment=EXPERIMENT)
    if outcome.exit_code or outcome.unrecorded:
        raise SystemExit(f"the study did not end well: {outcome.unrecorded or outcome.exit_code}")
    table = load_results(uri, [EXPERIMENT], cache=False)
    newest = table[table["study_id"] == outcome.record.id]
    return str(newest.sort_values("throughput")["model_id"].iloc[-1])


def asked(uri: str, workload: str, cache: Path) -> tuple[float, dict[str, Any]]:
    """Seconds of a fresh process, and its answer."""
    line = [
        *(sys.executable, "-m", "mlflow_ngraph", "engine", "pull", "--tracking-uri", uri, "--workloads", workload),
        *("--device", "here", "--objective", "throughput", "--dry-run", "--json"),
    ]
    start = time.perf_counter()
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env={**os.environ, "XDG_CACHE_HOME": str(cache)}
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"pull ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds, json.loads(done.stdout)


def spread(taken: list[float]) -> dict[str, float]:
    """Median, quartiles and range."""
    low, _, high = quantiles(taken, n=4)
    return {"median": median(taken), "q1": low, "q3": high, "min": min(taken), "max": max(taken), "times": len(taken)}


def main() -> None:
    """Measure, print, and fail where the bar is not met."""
    parser = argparse.ArgumentParser(description="Time the answer of pull on a server with many results.")
    parser.add_argument("--uri", help="a seeded server; one is made when left out")
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--max-warm-s", type=float, default=MAX_WARM_S)
    options = parser.parse_args()
    os.environ.update(QUIET)
    with tempfile.TemporaryDirectory(prefix="ngraph-pull-question-") as directory:
        home = Path(directory)
        if options.uri:
            found = measure(options.uri, home, options.repeat)
        else:
            with seeded(home, options.studies) as uri:
                found = measure(uri, home, options.repeat)
    print(json.dumps(found, indent=2))
    problems = [] if found["best"] else ["the answer is not the best engine"]
    if found["warm_s"]["median"] > options.max_warm_s:
        problems.append(f"warm: {found['warm_s']['median']:.2f} s, at most {options.max_warm_s:g} wanted")
    if problems:
        raise SystemExit("; ".join(problems))


def measure(uri: str, home: Path, repeat: int) -> dict[str, Any]:
    """Everything that is printed."""
    from mlflow_ngraph import load_results

    best = measured(uri, home / "home")
    table = load_results(uri, columns=["lane_run_id", "workload", "model_id"], cache=False)
    workload = str(table.loc[table["model_id"] == best, "workload"].iloc[0])
    cold: list[float] = []
    warm: list[float] = []
    answers = set()
    for number in range(repeat):
        cache = home / "cache" / str(number)
        for taken in (cold, warm):
            seconds, document = asked(uri, workload, cache)
            taken.append(seconds)
            answers.add(document["answer"]["chosen"]["model_id"])
    return {
        "lane_runs": int(table["lane_run_id"].nunique()), "cells": len(table), "cold_s": spread(cold),
        "warm_s": spread(warm), "best": answers == {best},
    }  # fmt: skip


if __name__ == "__main__":
    main()
