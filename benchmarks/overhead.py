"""What the harness itself costs: per repetition, per lane, in the parent, and at the command line.

``python benchmarks/overhead.py``

Exit code 1: a repetition costs more than 250 ns, or the parent more than 0.5 % of a core while its children measure.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from mlflow_ngraph.measure.loop import take_slice
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse


def main() -> int:
    """Measure and print each figure."""
    costs = _per_repetition()
    cost = statistics.median(costs)
    print(
        f"timed loop around a call that does nothing: {cost:.0f} ns a repetition "
        f"(20 slices, {min(costs):.0f} to {max(costs):.0f})"
    )
    print(f"mlflow-ngraph --help: {_help():.3f} s (median of 9)")
    share = _study()
    return int(cost > 250 or share > 0.5)


def _per_repetition() -> list[float]:
    """Nanoseconds that a repetition costs beyond the call, slice by slice."""
    costs = []
    for _ in range(20):
        taken = take_slice(lambda: None, 100_000, 60)
        costs.append(taken.wall_s / len(taken.durations_ns) * 1e9)
    return costs


def _help() -> float:
    command = [str(Path(sys.executable).with_name("mlflow-ngraph")), "--help"]
    times = []
    for _ in range(9):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class _Watch:
    """CPU time of this process while the children are measuring."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self._since: tuple[float, float] | None = None

    def on_event(self, event: dict[str, object]) -> None:
        measuring = event["event"] in ("slice", "round", "cell_ready")
        now = (time.process_time(), time.perf_counter())
        if self._since is not None:
            self.cpu += now[0] - self._since[0]
            self.wall += now[1] - self._since[1]
        self._since = now if measuring else None


def _study() -> float:
    """Print what lanes cost; returns the parent's share of one core while children measure, in percent."""
    watch = _Watch()
    study = parse(
        {
            "name": "overhead",
            "workloads": ["resnet18"],
            "compilers": ["identity", "torchscript", "torch-compile", "onnxruntime", "openvino", "tvm"],
            "batch_sizes": [1, 2, 4, 8],
            "repetitions": 30,
            "builds": "alone",
            "limits": {"cell_seconds": 5},
        }
    )
    with tempfile.TemporaryDirectory() as home:
        outcome = run_study(study, home=Path(home), offline=True, observer=watch)
    for lane in outcome.record.lanes.values():
        print(f"fixed cost of a lane with four batch sizes, {lane.lane.compiler}: {lane.overhead_s:.2f} s")
    share = 100 * watch.cpu / watch.wall
    print(
        f"parent while children measure: {share:.2f} % of one core, {share / (psutil.cpu_count() or 1):.2f} % of the machine"
    )
    return share


if __name__ == "__main__":
    raise SystemExit(main())
