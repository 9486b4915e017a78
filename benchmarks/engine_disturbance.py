"""What the fleet's engine takes from what is measured beside it: OpenVINO's ResNet-18 with all threads, the engine on and off.

``python benchmarks/engine_disturbance.py --engine-python /path/to/python [--pairs 120] [--seconds 1] [--workload timm:resnet18]
[--compiler openvino] [--of device] [--running]``

``/path/to/python`` has ray[default]. A node of a fleet is started on this machine as `mlflow-ngraph fleet up` starts it, the head and
a device in one, which is the most that a device ever carries, and has a job as a study is one. Pairs of slices follow each other:
in one of them, ``off``, all processes of the engine have been stopped (SIGSTOP) for some time; in the other, ``on``, they run, and a slice is
timed as a study times it, which has them stand still for as long. With ``--running`` they go on meanwhile: what they would take. Which comes
first changes by chance. With ``--of device`` all this is about the processes that a device has whose head is elsewhere, and the head's run
all the time. The throughput of a slice is all its calls over all its seconds, so that what interrupts a few calls counts. Printed is the
ratio of throughputs, on over off, and what the engine used of a processor in slices that were on. Exit code 1: the ratio is below 0.99, or
its interval is not all above.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import requests
from support.materials import prepared
from support.server import free_port

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.execute.lane import SETTLE_S
from mlflow_ngraph.measure.statistics import paired_ratio
from mlflow_ngraph.runner import plan_study, run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph_fleet import description, nodes
from mlflow_ngraph_fleet.standstill import Standstill, of_engine

TOLERATED = 0.99
DEVICE = "xeon"
_OF_HEAD = ("gcs_server", "dashboard/dashboard.py", "ray-dashboard-", "autoscaler/_private/monitor.py", "ray.util.client.server",
            "multiprocessing.forkserver", "multiprocessing.resource_tracker")  # fmt: skip
"""What commands of processes have in them that a head has and a device has not."""
_SETTLE_S = 0.2
"""Before each slice: processes that were stopped have things to catch up with."""
_QUIET_S = 30.0
"""Until an engine that has just started does no more than it always does."""


def main() -> int:
    """Take pairs of slices and print their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a slice")
    parser.add_argument("--workload", default="timm:resnet18")
    parser.add_argument("--compiler", default="openvino")
    parser.add_argument("--of", choices=("node", "device"), default="node", help="whose processes are stopped")
    parser.add_argument("--running", action="store_true", help="let the engine run while a slice is timed")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Short: Ray's sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="ngd-", ignore_cleanup_errors=True) as place:
        call = _engine(Path(place), options.workload, options.compiler)
        with _node(Path(place), options.engine_python) as mark:
            return _compare(call, mark, options)


def _compare(call: Callable[[], object], mark: str, options: argparse.Namespace) -> int:
    rng = random.Random(options.seed)
    throughputs: dict[bool, list[float]] = {True: [], False: []}
    used_s = ran_s = 0.0
    still = Standstill(partial(_chosen, mark, options.of))
    for _ in range(options.pairs):
        for on in rng.sample((True, False), 2):
            # Its workers come and go.
            processes = _chosen(mark, options.of)
            _signal(processes, signal.SIGCONT if on else signal.SIGSTOP)
            _throughput(call, _SETTLE_S)
            with still() if on and not options.running else nullcontext():
                _throughput(call, SETTLE_S)
                before = _cpu_s(processes)
                throughputs[on].append(_throughput(call, options.seconds))
                after = _cpu_s(processes)
            if on:
                used_s += sum(after[process] - before[process] for process in after)
                ran_s += options.seconds
    still.close()
    running, stopped = np.array(throughputs[True]), np.array(throughputs[False])
    ratio = paired_ratio(running, stopped)
    low, high = ratio.interval()
    median = float(np.median(running / stopped))
    print(
        f"{options.workload}, {options.compiler}, batch 1, {options.pairs} pairs of {options.seconds:g} s: throughput with the engine's "
        f"{options.of} on{' and running' * options.running} over off {ratio.value:.4f} [{low:.4f}, {high:.4f}] (median of the pairs "
        f"{median:.4f}); its {len(processes)} processes used {100 * used_s / ran_s:.1f} % of a processor in slices that were on"
    )
    good = median >= TOLERATED and low >= TOLERATED
    print("ok" if good else "NOT ok")
    return 0 if good else 1


def _throughput(call: Callable[[], object], seconds: float) -> float:
    """Calls a second."""
    calls, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds or not calls:
        call()
        calls += 1
    return calls / (now - begin)


def _engine(home: Path, workload: str, compiler: str) -> Callable[[], object]:
    """One inference of an engine that a study has compiled and verified."""
    study = parse(
        {
            "name": "engine-disturbance",
            "workloads": [workload],
            "compilers": ["identity", compiler],
            "batch_sizes": [1],
            "repetitions": 3,
        }
    )
    outcome = run_study(study, home=home, offline=True)
    plan = plan_study(study)
    (lane,) = [lane for lane in outcome.record.lanes.values() if lane.lane.compiler == compiler]
    source = Source(prepared(plan, outcome.directory, lane.lane.workload, 1))
    target = Target(precision="fp32", mode="sync", threads=plan.threads)
    directory = outcome.directory / lane.engines[0].directory
    engine = create(compiler, dict(lane.lane.flags)).load(directory, 1, target)
    return engine.bind(source.example(1)).call


@contextmanager
def _node(home: Path, python: str) -> Iterator[str]:
    """A node of a fleet with a job; gives the mark of its processes."""
    ports = [free_port(), free_port()]
    content = {
        "name": "disturbance",
        "token_file": "token",
        "head": {
            "host": "127.0.0.1",
            "engine_python": python,
            "port": ports[0],
            "dashboard_port": ports[1],
            "environment": {"RAY_TMPDIR": str(home)},
        },
        "devices": {DEVICE: {"host": "127.0.0.1", "engine_python": python, "python": sys.executable}},
    }
    fleet = description.parse(content, home / "fleet.yaml")
    (machine,) = nodes.machines(fleet)
    token = nodes.token(fleet)
    try:
        _ask(python, nodes.program(machine, "up", token=token), home)
        _submit(ports[1], token)
        time.sleep(_QUIET_S)
        yield machine.config["mark"]
    finally:
        _signal(of_engine(machine.config["mark"]), signal.SIGCONT)
        _ask(python, nodes.program(machine, "down"), home)


def _ask(python: str, program: str, home: Path) -> dict[str, Any]:
    environment = {**os.environ, "XDG_DATA_HOME": str(home), "NGRAPH_LOCK_DIR": str(home)}
    done = subprocess.run([python, "-"], input=program, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "problem" in answer or answer.get("left"):
        raise SystemExit(f"the engine: {answer.get('problem') or answer['left']}")
    return answer


def _submit(port: int, token: str) -> None:
    """A job that does nothing, and holds the device."""
    body: dict[str, Any] = {
        "entrypoint": "exec sleep 86400",
        "submission_id": "held",
        "entrypoint_resources": {DEVICE: 1},
    }
    address = f"http://127.0.0.1:{port}/api/jobs/"
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        session.post(address, json=body, timeout=60).raise_for_status()
        deadline = time.monotonic() + 60
        while (state := session.get(f"{address}held", timeout=60).json()["status"]) != "RUNNING":
            if time.monotonic() > deadline:
                raise SystemExit(f"the job is {state}")
            time.sleep(0.5)


def _chosen(mark: str, of: str) -> list[psutil.Process]:
    """The processes of a node, or of a device whose head is elsewhere."""
    return [process for process in of_engine(mark) if of == "node" or not _of_head(process)]


def _of_head(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return any(part in command for part in _OF_HEAD)
    return False


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _cpu_s(processes: Sequence[psutil.Process]) -> dict[psutil.Process, float]:
    """Seconds that each of them has used, of those that there still are."""
    used_s = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s[process] = times.user + times.system
    return used_s


if __name__ == "__main__":
    raise SystemExit(main())
