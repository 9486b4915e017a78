"""Kill a study at different points, resume it, and count: every cell once, none lost, nothing left behind.

``python benchmarks/kill_resume.py [--study smoke]``

Each scenario runs in a home and a SQLite store of its own. ``kill -9`` hits the parent, or a child, as soon as
the journal holds a certain event. Afterwards the study is resumed with ``--resume``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

POINTS = ("session_started", "workload_prepared", "engine_built", "cell_ready", "slice", "cell_finished")
PATIENCE_S = 300


def main() -> None:
    """Run every scenario; exit 1 if one of them lost or doubled something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="smoke")
    study = parser.parse_args().study
    failures = 0
    for victim in ("parent", "child"):
        for point in POINTS if victim == "parent" else POINTS[1:]:
            problems = scenario(study, victim, point)
            failures += bool(problems)
            print(
                f"kill -9 of the {victim} after {point}: {'; '.join(problems) or 'every cell once, nothing left'}",
                flush=True,
            )
    sys.exit(1 if failures else 0)


def scenario(study: str, victim: str, point: str) -> list[str]:
    """Kill and resume once; return what went wrong."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        env = {**os.environ, "NGRAPH_HOME": str(root / "home"), "MLFLOW_TRACKING_URI": f"sqlite:///{root}/mlflow.db"}
        command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", study]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not _wait_for(root, point, process):
            return [f"ended with code {process.returncode} before {point}"]
        if victim == "parent":
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(1)
            problems = [f"orphan process {pid}" for pid in _ours(root)]
        else:
            _kill_child(process)
            problems = [] if process.wait(PATIENCE_S) in (0, 3) else [f"exit code {process.returncode} after the kill"]
        finished = subprocess.run([*command, "--resume"], env=env, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            problems.append(f"resuming ended with {finished.returncode}: {finished.stderr.strip()[-300:]}")
        return problems + _count(root)


def _wait_for(root: Path, point: str, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        for journal in root.glob("home/studies/*/journal.jsonl"):
            if f'"event":"{point}"' in journal.read_text():
                return True
        time.sleep(0.02)
    return False


def _kill_child(parent: subprocess.Popen[bytes]) -> None:
    """Kill the worker that works: the one that has used CPU last."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and parent.poll() is None:
        workers = [
            child
            for child in psutil.Process(parent.pid).children()
            if "mlflow_ngraph.execute.worker" in child.cmdline()
        ]
        if workers:
            workers[-1].send_signal(signal.SIGKILL)
            return
        time.sleep(0.02)


def _ours(root: Path) -> list[int]:
    """Processes of this scenario that still live, found by their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("NGRAPH_HOME") == str(root / "home") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _count(root: Path) -> list[str]:
    """What the journal and the tracking store say, read without this package's help."""
    import pandas as pd
    from mlflow import MlflowClient

    problems = []
    (directory,) = (root / "home" / "studies").iterdir()
    events = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    lanes = next(event for event in events if event["event"] == "study_started")["lanes"]
    expected = {f"{lane['id']}-b{batch}" for lane in lanes for batch in lane["batch_sizes"]}
    ok = Counter(event["cell"] for event in events if event["event"] == "cell_finished" and event["verdict"] == "ok")
    problems += [f"cell {cell} was measured {ok[cell]} times" for cell in expected if ok[cell] != 1]
    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("ngraph")
    runs = client.search_runs([experiment.experiment_id])
    problems += [f"run {run.info.run_name} is {run.info.status}" for run in runs if run.info.status != "FINISHED"]
    kinds = Counter(run.data.tags.get("ngraph.kind") for run in runs)
    if kinds != Counter(study=1, lane=len(lanes)):
        problems.append(f"runs by kind: {dict(kinds)}")
    study = next(run for run in runs if run.data.tags.get("ngraph.kind") == "study")
    table = pd.read_parquet(client.download_artifacts(study.info.run_id, "results.parquet", str(root)))
    if sorted(table["cell"]) != sorted(expected):
        problems.append(f"the results table has {len(table)} rows for {len(expected)} cells")
    return problems


if __name__ == "__main__":
    main()
