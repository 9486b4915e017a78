"""Break a fleet while a study runs on it, and count: every cell once, no orphan, no run left RUNNING.

``NGRAPH_TEST_RAY_PYTHON=/path/to/python python benchmarks/fleet_chaos.py [--events study,node,head,client,link-40] [--times 1]
[--seed 1]``

It needs root, and a Python with ray[default]: the hosts are namespaces of this machine. Each event strikes a study of its own at a
moment that chance chooses, within the time that an undisturbed one takes. ``kill -9`` hits the study, a process that compiles or
measures for it, the node or the head of the engine, or the client; a link is down for so many seconds; a device is restarted, and
its node brought up again by ``fleet up``, as systemd does where there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Kind, Tag
from tests.support import lab as labs
from tests.support.lab_fleet import Fleet, described, pids, succeeds

EVENTS = ("study", "worker", "node", "head", "client", "link-5", "link-40", "link-120", "restart")
CELLS = 2
"""Of the study below."""
STUDY = ("smoke", "--batch-sizes", "1", "--fresh")
_QUIET_S, _PATIENCE_S = 30.0, 600.0


def main() -> None:
    """Strike as often as was asked for; exit 1 if one strike lost, doubled or left something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default=",".join(EVENTS))
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    python = labs.engine_python()
    if not python:
        sys.exit(f"name a Python with ray[default] in {labs.RAY_PYTHON}")
    failures = 0
    with (
        tempfile.TemporaryDirectory() as place,
        labs.made(("head", "xeon", "orin"), python) as lab,
        described(lab, Path(place)) as fleet,
    ):
        succeeds(fleet.run("fleet", "up"))
        rng = random.Random(asked.seed)
        try:
            succeeds(fleet.run(*_study(fleet)))  # brings the code, and what the first study alone waits for
            begun = time.monotonic()
            succeeds(fleet.run(*_study(fleet)))
            whole_s = time.monotonic() - begun
            print(f"an undisturbed study takes {whole_s:.0f} s", flush=True)
            for event in asked.events.split(",") * asked.times:
                started, after_s = time.monotonic(), rng.uniform(0, whole_s)
                problems = strike(fleet, event, after_s)
                failures += bool(problems)
                print(
                    f"{event} after {after_s:.1f} s: {'; '.join(problems) or 'every cell once, nothing left'} "
                    f"({time.monotonic() - started:.0f} s)",
                    flush=True,
                )
        finally:
            down = fleet.run("fleet", "down")
            print(down.stdout, flush=True)
    sys.exit(1 if failures or down.returncode else 0)


def _study(fleet: Fleet) -> tuple[str, ...]:
    return ("benchmark", *STUDY, "--device", "xeon", "--fleet", str(fleet.file), "--json")


def strike(fleet: Fleet, event: str, after_s: float) -> list[str]:
    """Let one thing happen to one study; returns what went wrong.

    Parameters
    ----------
    event : str
        One of `EVENTS`.
    after_s : float
        How long after the fleet has begun with the study.
    """
    study = fleet.start(*_study(fleet))
    _await(study, "xeon: ")  # it is submitted
    time.sleep(after_s)
    xeon, head = fleet.lab.hosts["xeon"], fleet.lab.hosts["head"]
    if event == "study":
        xeon.run("kill", "-9", *pids(xeon, "mlflow_ngraph fleet job"))
    elif event == "worker":
        xeon.run("kill", "-9", *pids(xeon, "mlflow_ngraph.processes.fork_server_child")[-1:])
    elif event == "node":
        xeon.run("kill", "-9", *pids(xeon, "raylet/raylet"))
    elif event == "head":
        head.run("kill", "-9", *pids(head, "gcs_server"), *pids(head, "raylet/raylet"))
    elif event == "client":
        study.send_signal(signal.SIGKILL)
        study.communicate()
        study = fleet.start("fleet", "attach", "--json")
    elif event == "restart":
        xeon.restart()
        succeeds(fleet.run("fleet", "up"))
    else:
        xeon.link("down")
        time.sleep(float(event.partition("-")[2]))
        xeon.link("up")
    try:
        out, err = study.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        study.send_signal(signal.SIGINT)
        out, err = study.communicate()
        return [f"not done within {_PATIENCE_S:.0f} s: {err[-500:]}"]
    if study.returncode:
        return [f"ended with {study.returncode}: {err[-500:]}"]
    time.sleep(_QUIET_S)
    orphans = [f"orphan {pid}" for host in fleet.lab.hosts.values() for pid in pids(host, "mlflow_ngraph")]
    told = json.loads(out)
    return [*orphans, *_recorded(fleet, told["devices"][0]["study_id"], told["run"].rpartition("/")[2])]


def _recorded(fleet: Fleet, study_id: str, parent: str) -> list[str]:
    """What the server has that it should not, and the other way round."""
    client = connection.connect(fleet.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    problems = [
        f"{run.info.run_name} is RUNNING" for run in client.search_runs(experiments, "attributes.status = 'RUNNING'")
    ]
    query = f"tags.`{Tag.STUDY_ID}` = '{study_id}'"
    kinds = Counter(run.data.tags[Tag.KIND] for run in client.search_runs(experiments, query))
    cells = sum(
        run.data.metrics.get("cells_ok", 0)
        for run in client.search_runs(experiments, f"{query} AND tags.`{Tag.KIND}` = '{Kind.LANE}'")
    )
    begun = len(client.search_runs(experiments, f"tags.`{Tag.PARENT}` = '{parent}'"))
    if begun != 1:
        problems.append(f"{begun} studies were begun")
    if kinds[Kind.STUDY] != 1 or cells != CELLS:
        problems.append(f"{kinds[Kind.STUDY]} study runs with {cells:.0f} ok cells of {CELLS}")
    return problems


def _await(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    sys.exit("".join(said))


if __name__ == "__main__":
    main()
