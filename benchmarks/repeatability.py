"""How far the same speed-up differs when it is measured again later, with and without paired rounds.

``python benchmarks/repeatability.py [--minutes 30] [--workloads resnet18,...] [--batch-sizes 1,4]
[--keep DIRECTORY]``

The same models and compilers are measured twice, half an hour apart: once in interleaved rounds of ten repetitions, and
once lane after lane (all repetitions of a cell in one slice), each time a hundred repetitions. Printed is how far the
second speed-up is from the first, for each cell and as the root of the mean square over cells. Paired, it should be at
most half of unpaired; exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import Study, parse

SLICES = {"paired": 10, "unpaired": 100}
"""Repetitions in a row, of a hundred."""
Speedups = dict[tuple[str, str, int], float]


def main() -> int:
    """Measure, wait, measure again, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workloads", default="resnet18,timm:mobilenetv3_small_100,timm:deit_tiny_patch16_224")
    parser.add_argument("--batch-sizes", default="1,4")
    parser.add_argument("--keep", type=Path, help="a folder in which the studies stay")
    options = parser.parse_args()
    workloads = options.workloads.split(",")
    batch_sizes = [int(batch) for batch in options.batch_sizes.split(",")]
    studies = {name: _study(name, workloads, batch_sizes, slice_) for name, slice_ in SLICES.items()}
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with place as home:
        begin = time.monotonic()
        first = {name: _measure(study, Path(home)) for name, study in studies.items()}
        time.sleep(max(0.0, begin + 60 * options.minutes - time.monotonic()))
        second = {name: _measure(study, Path(home)) for name, study in studies.items()}
    spreads = {name: _spread(name, first[name], second[name]) for name in studies}
    ratio = spreads["paired"] / spreads["unpaired"]
    print(f"spread of paired speed-ups / of unpaired ones: {ratio:.2f}")
    return int(ratio > 0.5)


def _study(name: str, workloads: list[str], batch_sizes: list[int], slice_repetitions: int) -> Study:
    return parse(
        {
            "name": f"repeatability-{name}",
            "workloads": workloads,
            "compilers": ["identity", "torchscript", "onnxruntime", "openvino"],
            "batch_sizes": batch_sizes,
            "repetitions": 100,
            "slice_repetitions": slice_repetitions,
            "limits": {"cell_seconds": 60, "slice_seconds": 60},
        }
    )


def _measure(study: Study, home: Path) -> Speedups:
    record = run_study(study, home=home, offline=True, resume="never").record
    found: Speedups = {}
    for lane in record.lanes.values():
        for batch, cell in lane.cells.items():
            if lane.lane.compiler != "identity" and "speedup" in cell.metrics:
                found[lane.lane.label, lane.lane.compiler, batch] = cell.metrics["speedup"]
    return found


def _spread(name: str, first: Speedups, second: Speedups) -> float:
    differences = {cell: math.log(second[cell] / first[cell]) for cell in first if cell in second}
    for (label, compiler, batch), difference in differences.items():
        print(
            f"{name:8}  {label} {compiler} batch {batch}: {first[label, compiler, batch]:.3f}, {100 * difference:+.2f} %"
        )
    spread = math.sqrt(sum(value**2 for value in differences.values()) / len(differences))
    print(f"{name}: root mean square of the differences {100 * spread:.2f} % over {len(differences)} cells", flush=True)
    return spread


if __name__ == "__main__":
    raise SystemExit(main())
