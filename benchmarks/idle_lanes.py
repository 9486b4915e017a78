"""What idle lanes cost: an engine alone in a plain script, against the same engine in a study with five others alive.

``python benchmarks/idle_lanes.py [--workload resnet18] [--batch 1] [--rounds 12] [--seconds 4]``

In turns, a script of a few lines loads the engine in a process of its own, with nothing else alive, and a study measures
it in a process as old, while the lanes of five other compilers have theirs loaded. Both keep freed memory, and call the
engine before they time it; which of the two comes first changes from round to round. TVM only idles: a call of its
untuned engines takes seconds. The ratio of throughputs should be within 1 %: exit code 1 if the trimmed mean over all
compilers is not, or if the whole interval of a compiler lies beyond.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.alone import measured
from support.materials import prepared

from mlflow_ngraph.estimates import Array
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.lane import LaneRunner
from mlflow_ngraph.execute.lane_engines import LaneEngines
from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.execute.record import LaneRecord, StudyRecord
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.execute.study_directories import StudyPaths
from mlflow_ngraph.measure.statistics import paired_ratio
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph.runner import plan_study, run_study
from mlflow_ngraph.study import Study, parse

TOLERATED = 0.01
MEASURED = ["identity", "torchscript", "torch-compile", "onnxruntime", "openvino"]
COMPILERS = [*MEASURED, "tvm"]


def main() -> int:
    """Take turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="resnet18")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    study = parse(
        {
            "name": "idle-lanes",
            "workloads": [options.workload],
            "compilers": COMPILERS,
            "batch_sizes": [options.batch],
            "repetitions": 1_000_000,
            "slice_repetitions": 100_000,
            # However long an engine takes to load, each of its slices has a fresh process.
            "limits": {"cell_seconds": 1e6, "slice_seconds": options.seconds, "reload_seconds": 600},
        }
    )
    with tempfile.TemporaryDirectory() as home:
        outcome = run_study(study.model_copy(update={"repetitions": 3}), home=Path(home), offline=True)
        return _compare(study, outcome.record, outcome.directory, options)


@dataclass(frozen=True)
class Slices:
    """What the lanes of one study measured, by compiler."""

    median_s: dict[str, float]
    """Of a call."""
    age_s: dict[str, float]
    """Of the process when its slice began."""


def _compare(study: Study, record: StudyRecord, directory: Path, options: argparse.Namespace) -> int:
    plan, batch = plan_study(study), options.batch
    (workload,) = plan.workloads
    materials = prepared(plan, directory, str(workload.ref), batch)
    ours: dict[str, list[float]] = {}
    alone: dict[str, list[float]] = {}
    # Not counted: it puts files into the page cache.
    slices = _in_a_study(plan, record, directory, batch)
    for round_ in range(options.rounds):
        study_first = round_ % 2 == 0
        if study_first:
            slices = _in_a_study(plan, record, directory, batch)
        for lane in _measured(record):
            given = {
                "compiler": lane.lane.compiler,
                "flags": dict(lane.lane.flags),
                "engine": str(directory / lane.engines[0].directory),
                "materials": str(materials),
                "batch": batch,
                "target": {"precision": "fp32", "mode": "sync", "threads": plan.threads},
                "seconds": options.seconds,
            }
            timed = measured(given, plan.threads, age_s=slices.age_s[lane.lane.compiler])
            alone.setdefault(lane.lane.compiler, []).append(timed.median_s)
        if not study_first:
            slices = _in_a_study(plan, record, directory, batch)
        for compiler, median_s in slices.median_s.items():
            ours.setdefault(compiler, []).append(median_s)
        print(f"round {round_ + 1} of {options.rounds}", file=sys.stderr, flush=True)
    failed = False
    for compiler in MEASURED:
        found = paired_ratio(np.array(alone[compiler]), np.array(ours[compiler]))
        low, high = found.interval()
        failed |= bool(low > 1 + TOLERATED or high < 1 - TOLERATED)
        print(
            f"{compiler}: alone {statistics.median(alone[compiler]) * 1e3:.3f} ms, beside five idle lanes "
            f"{statistics.median(ours[compiler]) * 1e3:.3f} ms, throughput ratio {found.value:.4f} ({low:.4f} to {high:.4f})"
        )
    # Rounds, not compilers: what disturbs the machine disturbs neighbours in time alike.
    found = paired_ratio(_by_round(alone), _by_round(ours))
    low, high = found.interval()
    print(f"all: throughput ratio {found.value:.4f} ({low:.4f} to {high:.4f})")
    return int(failed or abs(found.value - 1) > TOLERATED)


def _by_round(medians: Mapping[str, Sequence[float]]) -> Array:
    """The geometric mean over compilers; shape (rounds,)."""
    logs: Array = np.log([medians[compiler] for compiler in MEASURED]).mean(axis=0)
    return np.exp(logs)


def _measured(record: StudyRecord) -> list[LaneRecord]:
    return [lane for lane in record.lanes.values() if lane.lane.compiler in MEASURED]


def _in_a_study(plan: StudyPlan, record: StudyRecord, directory: Path, batch: int) -> Slices:
    """Load the engines of all lanes, give each a fresh process, and time one slice of each while the others idle."""
    found, places = Slices({}, {}), StudyPaths(directory)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(Journal(scratch))
        warden = Warden()
        stack.callback(warden.close)
        session = Session(plan, places, journal, warden, 1)
        runners = []
        for lane in record.lanes.values():
            engines = LaneEngines(session, lane.lane)
            engines.reuse(lane.engines[0])
            runners.append(LaneRunner(session, engines))
            stack.callback(runners[-1].close)
            runners[-1].load(batch)
        timed = [runner for runner in runners if runner.lane.compiler in MEASURED]
        for runner in timed:
            runner.warm_up()
            runner.slice(0, 0, companion=False)  # as a study has one before it renews processes
        born = {}
        for runner in timed:
            born[runner.lane.compiler] = time.monotonic()
            if not runner.renew():
                raise RuntimeError(f"{runner.lane.compiler} kept its process")
        for runner in timed:
            runner.renewed()
        for runner in timed:
            found.age_s[runner.lane.compiler] = time.monotonic() - born[runner.lane.compiler]
            runner.slice(0, 1, companion=False)
            if runner.loaded is None:
                raise RuntimeError("the engine is gone")
            found.median_s[runner.lane.compiler] = runner.loaded.slices[-1].median_s
    return found


if __name__ == "__main__":
    raise SystemExit(main())
