"""Several clients at one device at once: does more than one ever measure, in which order do they, and what does a killed one hold up?

``[NGRAPH_TEST_RAY_PYTHON=/path/to/python] python benchmarks/fleet_turns.py [--engine ray|slurm] [--times 20] [--clients 4] [--kills 20]
[--parts whole,turns,kills,price]``

It needs root, and Ray's or Slurm's programs: the hosts are namespaces of this machine. NGRAPH_TEST_ORIN_PYTHON names another Python
with torch and ONNX Runtime for ``orin``. Parts:

whole   ``smoke`` on both devices by one command, with one comparison.
turns   the clients begin in the same moment, so many times. Each study says when it had the device, by its journal (from the beginning of
        its session to its end, and every slice), and the lock's own file is read all the while. They must not overlap, and must come in
        the order in which the engine took the jobs.
kills   whoever has the device is killed while another waits for it: how long until the lock is free, or the other's.
price   ``smoke`` at batch 1 by the fleet and by the same command on the device itself, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.machine_lock import NAME, Holder, holder
from mlflow_ngraph_fleet import connection as engines
from mlflow_ngraph_fleet import description
from tests.support import lab as labs
from tests.support import slurm as clusters
from tests.support.lab_fleet import Fleet, described, succeeds

STUDY = ("smoke", "--compilers", "identity", "--batch-sizes", "1", "--repetitions", "10", "--fresh")
PRICED = ("smoke", "--batch-sizes", "1", "--fresh")
PARTS = ("whole", "turns", "kills", "price")
FREE_WITHIN_S = 5.0
"""Bound for the lock of a holder that is killed."""
MOST_A_DEVICE_S = 15.0
"""Bound for what the fleet adds to a study."""
_PRICED = 3
_LOOK_S = 0.01


@dataclass(frozen=True)
class Turn:
    """A study that had the device."""

    study_id: str
    began: float
    """Unix seconds, as all of these."""
    ended: float
    slices: tuple[tuple[float, float], ...]


def main() -> None:
    """Do each part, and print a line for it; exit 1 if one missed its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["ray", "slurm"], default="ray")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args()
    python = labs.engine_python()
    if options.engine == "ray" and not python:
        sys.exit(f"name a Python with ray[default] in {labs.RAY_PYTHON}")
    parts: dict[str, Callable[[Fleet], list[str]]] = {
        "whole": whole,
        "turns": lambda fleet: turns(fleet, options.times, options.clients),
        "kills": lambda fleet: kills(fleet, options.kills),
        "price": price,
    }
    problems = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        lab = stack.enter_context(labs.made(("head", "xeon", "orin"), python))
        by_slurm = options.engine == "slurm"
        if by_slurm:
            stack.enter_context(clusters.cluster(("xeon", "orin"), lab))
        fleet = stack.enter_context(described(lab, Path(place), slurm=by_slurm))
        if not by_slurm:
            succeeds(fleet.run("fleet", "up"))
        try:
            succeeds(fleet.run(*_on(STUDY, "xeon")))  # brings the code
            for name in options.parts.split(","):
                problems += [f"{name}: {problem}" for problem in parts[name](fleet)]
        finally:
            if not by_slurm:
                down = fleet.run("fleet", "down")
                print(down.stdout, flush=True)
                problems += ["fleet down left something"] if down.returncode else []
    print("\n".join(problems) or "every bound is kept", flush=True)
    sys.exit(1 if problems else 0)


def whole(fleet: Fleet) -> list[str]:
    """One study on both devices."""
    began = time.monotonic()
    told = json.loads(succeeds(fleet.run("benchmark", "smoke", "--device", "all", "--json")))
    codes = {device["device"]: device["code"] for device in told["devices"]}
    values = told["comparison"]["values"] if told["comparison"] else []
    print(
        f"smoke on both devices: exit codes {codes}, one comparison of {len(values)} numbers, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return [] if codes == {"xeon": 0, "orin": 0} and values else [f"codes {codes}, {len(values)} numbers compared"]


def turns(fleet: Fleet, times: int, clients: int) -> list[str]:
    """Let clients begin in the same moment."""
    home, problems, studies, in_order = _home(fleet), [], 0, 0
    for number in range(1, times + 1):
        before = {path.name for path in (home / "studies").iterdir()}
        with _watched(fleet) as seen:
            begun = [fleet.start(*_on(STUDY, "xeon")) for _ in range(clients)]
            told = [_told(client) for client in begun]
        had = [_turn(path) for path in (home / "studies").iterdir() if path.name not in before]
        of_client = {answer["devices"][0]["study_id"]: answer["fleet_study"] for answer in told}
        taken = _order(fleet, list(of_client.values()))
        measured = [of_client.get(turn.study_id, "nobody's") for turn in sorted(had, key=lambda turn: turn.began)]
        wrong = [*_overlaps(had), *_disagree(seen, had)]
        if len(had) != clients:
            wrong.append(f"{len(had)} studies of {clients} clients")
        if measured == taken:
            in_order += 1
        else:
            wrong.append(f"taken in the order {taken}, measured in {measured}")
        studies += len(had)
        problems += [f"time {number}: {problem}" for problem in wrong]
        print(f"turns {number}/{times}: {'; '.join(wrong) or 'one after the other, in order'}", flush=True)
    print(f"{studies} studies of {clients} clients at once, {times} times; in order {in_order} times", flush=True)
    return problems


def kills(fleet: Fleet, times: int) -> list[str]:
    """Kill whoever has the device, while another waits for it."""
    host, took, problems = fleet.lab.hosts["xeon"], [], []
    for number in range(1, times + 1):
        begun = [fleet.start(*_on(STUDY, "xeon")) for _ in range(2)]
        killed = _holds(host, lambda found: found is not None)
        assert killed is not None
        at = time.monotonic()
        host.run("kill", "-9", str(killed.pid))
        _holds(host, lambda found, killed=killed: found is None or found.pid != killed.pid)  # type: ignore[misc]
        took.append(time.monotonic() - at)
        ended = [client.wait(600) for client in begun]
        [client.communicate() for client in begun]
        if took[-1] > FREE_WITHIN_S or any(ended):
            problems.append(f"kill {number}: free after {took[-1]:.2f} s, clients ended with {ended}")
        print(f"kills {number}/{times}: free after {took[-1]:.2f} s; both studies then came to their end", flush=True)
    print(f"lock of a killed holder: free within {max(took):.2f} s, median {statistics.median(took):.2f} s", flush=True)
    return problems


def price(fleet: Fleet) -> list[str]:
    """What the fleet adds to a study."""
    host, added = fleet.lab.hosts["xeon"], []
    variables = [f"NGRAPH_HOME={_home(fleet)}", f"NGRAPH_LOCK_DIR={host.directory}"]
    variables += [f"{name}={fleet.environment[name]}" for name in ("MLFLOW_TRACKING_URI", "PYTHONPATH")]
    alone = host.inside(
        "env", *variables, sys.executable, "-m", "mlflow_ngraph", "benchmark", *PRICED, "--device", "xeon"
    )
    for _ in range(_PRICED):
        seconds = []
        for command in ([sys.executable, "-m", "mlflow_ngraph", *_on(PRICED, "xeon")], alone):
            begun = time.monotonic()
            succeeds(
                subprocess.run(
                    command, env=fleet.environment, cwd=fleet.file.parent, capture_output=True, text=True, check=False
                )
            )
            seconds.append(time.monotonic() - begun)
        added.append(seconds[0] - seconds[1])
        print(f"price: {seconds[0]:.1f} s by the fleet, {seconds[1]:.1f} s on the device itself", flush=True)
    print(f"the fleet adds {statistics.median(added):.1f} s to a study (median; {max(added):.1f} at most)", flush=True)
    return [] if statistics.median(added) <= MOST_A_DEVICE_S else [f"adds {statistics.median(added):.1f} s"]


def _on(study: tuple[str, ...], device: str) -> tuple[str, ...]:
    return ("benchmark", *study, "--device", device, "--fleet", "fleet.yaml", "--json")


def _home(fleet: Fleet) -> Path:
    return fleet.lab.hosts["xeon"].directory / "data" / "mlflow-ngraph"


def _told(client: subprocess.Popen[str]) -> Any:
    out, err = client.communicate(timeout=900)
    if client.returncode:
        sys.exit(err + out)
    return json.loads(out)


def _turn(study: Path) -> Turn:
    events = list(journal.read(study))
    session = [event["at"] for event in events if event["event"] == "session_started"]
    slices = [event for event in events if event["event"] == "slice"]
    return Turn(
        study.name,
        session[0],
        next(event["at"] for event in reversed(events) if event["event"] == "study_finished"),
        tuple((each["started_ns"] / 1e9, each["started_ns"] / 1e9 + each["wall_s"]) for each in slices),
    )


def _overlaps(had: list[Turn]) -> list[str]:
    """Studies that had the device before the one before them had ended, and slices within each other."""
    in_turn = sorted(had, key=lambda turn: turn.began)
    problems = [
        f"{second.study_id} began {first.ended - second.began:.2f} s before {first.study_id} ended"
        for first, second in itertools.pairwise(in_turn)
        if second.began < first.ended
    ]
    slices = sorted((begin, end, turn.study_id) for turn in had for begin, end in turn.slices)
    return problems + [
        f"slices of {first[2]} and {second[2]} overlap"
        for first, second in itertools.pairwise(slices)
        if second[0] < first[1] and first[2] != second[2]
    ]


def _disagree(seen: list[Holder], had: list[Turn]) -> list[str]:
    """What the lock's own file said, beside the journals: as many holders, each before its study began."""
    ends = [0.0, *sorted(turn.ended for turn in had)]
    since = sorted({each.since for each in seen})
    if len(since) != len(had):
        return [f"the lock had {len(since)} holders, and {len(had)} studies measured"]
    begins = sorted(turn.began for turn in had)
    return [
        f"the lock was taken {free - taken:.2f} s before it was free"
        for taken, begin, free in zip(since, begins, ends, strict=False)
        if not free <= taken <= begin
    ]


def _order(fleet: Fleet, studies: list[str]) -> list[str]:
    """These studies in the order in which the engine took their jobs."""
    described_fleet = description.load(fleet.file)
    if described_fleet.engine == "slurm":
        known = subprocess.run(
            ["squeue", "--noheader", "--states", "all", "--sort=i", "--format", "%j"],
            capture_output=True,
            text=True,
            check=True,
        )
        jobs = known.stdout.split()
    else:
        with engines.connect(described_fleet) as engine:
            taken = engine._client.list_jobs()  # type: ignore[attr-defined]  # noqa: SLF001 - says when
        jobs = [str(each.submission_id) for each in sorted(taken, key=lambda each: each.start_time or 0)]
    of_job = {job: study for study in studies for job in jobs if study in job}
    return [of_job[job] for job in jobs if job in of_job]


@contextmanager
def _watched(fleet: Fleet) -> Iterator[list[Holder]]:
    """Whoever the lock's file names meanwhile."""
    path, seen, ended = fleet.lab.hosts["xeon"].directory / NAME, list[Holder](), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            try:
                found = Holder(**json.loads(path.read_text()))
            except (OSError, ValueError, TypeError):
                continue
            if not seen or seen[-1] != found:
                seen.append(found)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        ended.set()
        watching.join()


def _holds(host: labs.Host, wanted: Callable[[Holder | None], bool]) -> Holder | None:
    deadline = time.monotonic() + 300
    while not wanted(found := holder(host.directory)):
        if time.monotonic() > deadline:
            sys.exit("the device was never taken, or never free")
        time.sleep(_LOOK_S)
    return found


if __name__ == "__main__":
    main()
