"""Kill a study at different points, resume it, and count: every cell once, none lost, nothing left behind.

``python benchmarks/kill_resume.py [--study smoke] [--random 200 [--in-a-row 3] [--seed 1] [--victims parent,child,mlflow,sync]]``

Each scenario runs in a home and a SQLite store of its own. ``kill -9`` hits the parent, or a child, as soon as
the journal holds a certain event. Afterwards the study is resumed with ``--resume``.

With ``--random`` it hits at so many random moments: the parent or a child of a study and its recording, ``mlflow run``, or the
``sync`` of a study that was measured offline. Then the same command is given again, which with ``--in-a-row`` may be killed as well,
and in the end the server has to have what it has after an undisturbed run, but for timings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
POINTS = ("session_started", "workload_prepared", "engine_built", "cell_ready", "slice", "cell_finished")
VICTIMS = ("parent", "child", "mlflow", "sync")
PATIENCE_S = 300
_OF_RUNS = ("ngraph.complete", "ngraph.verdict", "ngraph.verdicts", "ngraph.cells", "ngraph.compiler_label")
"""Tags that no timing changes."""


def main() -> None:
    """Run every scenario; exit 1 if one of them lost or doubled something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="smoke")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="kill at so many random moments")
    parser.add_argument("--in-a-row", type=int, default=1, help="so many of them at most in one study")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victims", default=",".join(VICTIMS))
    options = parser.parse_args()
    study = options.study
    if options.random:
        failed = at_random(study, options.random, options.in_a_row, options.seed, options.victims.split(","))
        sys.exit(1 if failed else 0)
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


def at_random(study: str, count: int, in_a_row: int, seed: int, victims: list[str]) -> int:
    """Kill so often at random moments; return in how many studies something was wrong."""
    rng, failures, kills, studies = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        _new_database(Path(place))
        whole = {kind: undisturbed(kind, study, Path(place) / kind) for kind in sorted({_kind(one) for one in victims})}
        while kills < count:
            victim = rng.choice(victims)
            seconds, expected = whole[_kind(victim)]
            moments = [rng.uniform(0, 1.05 * seconds) for _ in range(min(in_a_row, count - kills))]
            root = Path(place) / f"random-{studies}"
            hit, problems = killed_at(victim, moments, study, root, Path(place), expected)
            failures, kills, studies = failures + bool(problems), kills + len(hit), studies + 1
            when = ", ".join(f"{moment:.2f}" for moment in hit)
            print(
                f"{kills}/{count} kill -9 of {victim} after {when} s: {'; '.join(problems) or 'as undisturbed'}",
                flush=True,
            )
            shutil.rmtree(root, ignore_errors=True)
    print(f"{studies - failures} of {studies} studies with {kills} kills as undisturbed")
    return failures


def _new_database(root: Path) -> None:
    """An empty one: MLflow's own making of its tables does not survive a kill, whoever asks for it."""
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{root}/mlflow.db").search_experiments(max_results=1)


def _kind(victim: str) -> str:
    """What is run whose part is killed."""
    return victim if victim in ("mlflow", "sync") else "study"


def _command(kind: str, study: str, root: Path) -> list[str]:
    if kind == "mlflow":
        parameters = (
            "-P",
            f"study={study}",
            "-P",
            "device=host",
            "--env-manager",
            "local",
            "--experiment-name",
            "ngraph",
        )
        return [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "benchmark", *parameters]
    if kind == "sync":
        (directory,) = (root / "home" / "studies").iterdir()
        return [sys.executable, "-m", "mlflow_ngraph", "study", "sync", str(directory)]
    return [sys.executable, "-m", "mlflow_ngraph", "benchmark", study]


def _environment(root: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    uri = f"sqlite:///{root}/mlflow.db"
    return {
        **os.environ,
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "NGRAPH_HOME": str(root / "home"),
        "MLFLOW_TRACKING_URI": uri,
        "PATH": path,
    }


def undisturbed(kind: str, study: str, root: Path) -> tuple[float, dict[str, Any]]:
    """How long it takes, and what the server then has."""
    root.mkdir()
    shutil.copyfile(root.parent / "mlflow.db", root / "mlflow.db")
    if kind == "sync":
        _measure_offline(study, root)
    begun = time.monotonic()
    done = subprocess.run(
        _command(kind, study, root), env=_environment(root), cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"{kind} ends with {done.returncode} undisturbed: {done.stderr.strip()[-500:]}")
    return time.monotonic() - begun, server_state(root)


def _measure_offline(study: str, root: Path) -> None:
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", study, "--offline"]
    subprocess.run(command, env=_environment(root), cwd=root, capture_output=True, check=False)


def killed_at(
    victim: str, moments: list[float], study: str, root: Path, undisturbed_in: Path, expected: dict[str, Any]
) -> tuple[list[float], list[str]]:
    """Kill, and give the command again, until nothing more is left to do; returns the kills, and what is wrong in the end."""
    kind, hit, problems = _kind(victim), list[float](), list[str]()
    root.mkdir()
    shutil.copyfile(undisturbed_in / "mlflow.db", root / "mlflow.db")
    if kind == "sync":
        shutil.copytree(undisturbed_in / "sync" / "home", root / "home")
    for moment in moments:
        hit.append(moment)
        problems += _killed(victim, _again(victim, study, root), moment, root)
        if problems or (kind != "sync" and _is_recorded(root)):
            break
    if kind == "sync" or victim == "child" or not _is_recorded(root):
        done = subprocess.run(
            _again(victim, study, root), env=_environment(root), cwd=root, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 3):
            problems.append(f"again it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    if twice := _measured_twice(root):
        problems.append(f"measured twice: {', '.join(twice)}")
    state = server_state(root)
    return hit, problems + [
        f"{name}: {_difference(state[name], expected[name])}" for name in expected if state[name] != expected[name]
    ]


def _again(victim: str, study: str, root: Path) -> list[str]:
    """The command; a study that has lost a child, and ended without a cell for it, is told to try that again."""
    told = victim == "child" and _has_begun(root)
    return [*_command(_kind(victim), study, root), *(["--resume"] if told else [])]


def _killed(victim: str, command: list[str], moment: float, root: Path) -> list[str]:
    process = subprocess.Popen(
        command, env=_environment(root), cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + moment
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.005)
    if victim == "child":
        workers = [
            one for one in _family(process) if "execute.worker" in _called(one) or "fork_server_child" in _called(one)
        ]
        for worker in workers[-1:]:
            worker.kill()
    else:
        process.kill()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return [f"did not end within {PATIENCE_S} s of the kill"]
    deadline = time.monotonic() + 30
    while (orphans := _ours(root)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"orphan process {pid}" for pid in orphans]


def _difference(found: list[Any], expected: list[Any]) -> str:
    """What only one of two lists has, as far as a line has room for it."""
    only = [entry for entry in found if entry not in expected], [entry for entry in expected if entry not in found]
    return f"{len(found)} instead of {len(expected)}; " + " instead of ".join(str(part)[-400:] for part in only)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _called(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _events(root: Path) -> list[dict[str, Any]]:
    """Those of the newest study; a half-written last line is none."""
    journals = sorted(root.glob("home/studies/*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = journals[-1].read_text().split("\n")[:-1] if journals else []
    return [json.loads(line) for line in lines]


def _has_begun(root: Path) -> bool:
    return bool(_events(root))


def _is_recorded(root: Path) -> bool:
    """Whether the same command would measure anew, because nothing is left to do."""
    kinds = [event["event"] for event in _events(root)]
    return "study_finished" in kinds and "study_recorded" in kinds[len(kinds) - kinds[::-1].index("study_finished") :]


def _measured_twice(root: Path) -> list[str]:
    """Cells with two verdicts, where nothing was wrong with the first."""
    first: dict[str, dict[str, Any]] = {}
    twice = []
    for event in _events(root):
        if event["event"] == "cell_finished":
            before = first.setdefault(event["cell"], event)
            if before is not event and before["verdict"] == "ok" and not before["noise"]:
                twice.append(str(event["cell"]))
    return twice


def server_state(root: Path) -> dict[str, Any]:
    """What a server has, but for timings, ids, and runs that another one took over; read without this package's help.

    ``mlflow run`` that is killed before its study begins leaves a run of its own: KILLED, and with nothing of ours in it.
    """
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    import pandas as pd
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments)
    live = [run for run in runs if "ngraph.resumed_by" not in run.data.tags and not _never_began(run)]
    models = client.search_logged_models(experiments)
    state: dict[str, Any] = {
        "left running": sorted(run.info.run_name for run in runs if run.info.status == "RUNNING"),
        "runs": sorted(
            [
                run.data.tags.get("ngraph.kind", "no study"),
                run.info.status,
                sorted(run.data.params.items() if run.data.tags.get("ngraph.kind") == "lane" else ()),
                "throughput" in run.data.metrics,
                sorted((name, value) for name, value in run.data.tags.items() if name in _OF_RUNS),
            ]
            for run in live
        ),
        "models": sorted([sorted(model.params.items()), str(model.status)] for model in models),
        "tables": [],
    }
    for run in live:
        if run.data.tags.get("ngraph.kind") == "study" and run.info.status == "FINISHED":
            table = pd.read_parquet(client.download_artifacts(run.info.run_id, "results.parquet", str(root)))
            state["tables"].append(sorted(zip(table["cell"], table["verdict"], strict=True)))
    return state


def _never_began(run: Any) -> bool:
    return run.info.status == "KILLED" and "ngraph.kind" not in run.data.tags and not run.data.metrics


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
