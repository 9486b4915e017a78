"""What becomes of eager execution when its process keeps the memory that it frees, instead of returning it to the system.

``python benchmarks/freed_memory.py [--workloads REF,...] [--batch-sizes 1,8] [--compiler identity] [--rounds 6]``

In turns, a fresh process measures the engine with glibc's malloc as it is, and another one with ``freed_memory: keep``, as
studies measure. Printed are the speed-up by keeping, the pages that the kernel had to give for each inference, and how far
equal processes are apart (standard deviation of the logarithms of their medians).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support.alone import Found, measured
from support.materials import prepared

from mlflow_ngraph.execute.record import EngineRecord, Lane, StudyRecord
from mlflow_ngraph.measure.statistics import paired_ratio
from mlflow_ngraph.runner import plan_study, run_study
from mlflow_ngraph.study import parse

WORKLOADS = "timm:mobilenetv3_large_100,timm:lcnet_050,timm:resnet18,timm:deit_tiny_patch16_224"


def main() -> None:
    """Take turns and print a line for each model and batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--batch-sizes", default="1,8")
    parser.add_argument("--compiler", default="identity")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    study = parse(
        {
            "name": "freed-memory",
            "workloads": options.workloads.split(","),
            "compilers": [options.compiler],
            "batch_sizes": [int(size) for size in options.batch_sizes.split(",")],
            "repetitions": 3,
        }
    )
    with tempfile.TemporaryDirectory() as home:
        outcome = run_study(study, home=Path(home), offline=True)
        plan = plan_study(study)
        for lane, engine, batch in _engines(outcome.record, options.compiler):
            given = {
                "compiler": lane.compiler,
                "flags": dict(lane.flags),
                "engine": str(outcome.directory / engine.directory),
                "materials": str(prepared(plan, outcome.directory, lane.workload, batch)),
                "batch": batch,
                "target": {"precision": "fp32", "mode": "sync", "threads": plan.threads},
                "seconds": options.seconds,
            }
            bare: list[Found] = []
            keeping: list[Found] = []
            for _ in range(options.rounds):
                bare.append(measured(given, plan.threads, "return"))
                keeping.append(measured(given, plan.threads, "keep"))
            print(f"{lane.label} {lane.compiler} batch {batch}: {_compared(bare, keeping)}", flush=True)


def _engines(record: StudyRecord, compiler: str) -> Iterator[tuple[Lane, EngineRecord, int]]:
    for lane in record.lanes.values():
        if lane.lane.compiler == compiler:
            for engine in lane.engines:
                for batch in engine.batch_sizes:
                    yield lane.lane, engine, batch


def _compared(bare: list[Found], keeping: list[Found]) -> str:
    found = paired_ratio(_seconds(bare), _seconds(keeping))
    low, high = found.interval()
    apart = [100 * float(np.log(_seconds(side)).std(ddof=1)) for side in (bare, keeping)]
    faults = [statistics.median(one.page_faults for one in side) for side in (bare, keeping)]
    return (
        f"{found.value:.2f} times as fast when it keeps ({low:.2f} to {high:.2f}); page faults by inference "
        f"{faults[0]:.0f} and {faults[1]:.0f}; equal processes differ by {apart[0]:.1f} % and {apart[1]:.1f} %"
    )


def _seconds(found: list[Found]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([one.median_s for one in found])


if __name__ == "__main__":
    main()
