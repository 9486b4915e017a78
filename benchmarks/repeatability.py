"""How far the same speed-up differs when it is measured again later, with and without paired rounds.

``python benchmarks/repeatability.py [--minutes 30] [--workloads resnet18,...] [--batch-sizes 1,4]
[--keep DIRECTORY]``

The same models and compilers are measured twice, half an hour apart, a hundred repetitions of each cell in each of three
ways: in rounds of ten repetitions, as a study does (``paired``); all repetitions of a cell in one slice, so that the lanes
of a workload and batch size follow each other within seconds (``adjacent``); and one compiler after the other over all
workloads, as a script or a run for each compiler does (``apart``). Printed is how far the second speed-up is from the first,
for each cell and as the root of the mean square over cells, and how many of the second are within the intervals: those of their
own rounds, and those that allow for what the hour has changed for the other workloads. Paired, it should be at most half of what it is with compilers
apart; exit code 1 if it is not.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlflow_ngraph.analysis import between_studies
from mlflow_ngraph.analysis.between_studies import Between
from mlflow_ngraph.estimates import Estimate, quantile
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import BASELINE, Study, parse

COMPILERS = ["torchscript", "onnxruntime", "openvino"]
REPETITIONS = 100
Cell = tuple[str, str, int]
"""Workload, compiler, batch size."""


class Speedup(NamedTuple):
    """Over eager execution."""

    value: float
    error: float | None = None
    """Standard error of its logarithm; one slice has none."""
    freedom: float | None = None


Speedups = dict[Cell, Speedup]


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
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with place as home:
        begin = time.monotonic()
        first = _measure(workloads, batch_sizes, Path(home))
        print(f"measured once, in {(time.monotonic() - begin) / 60:.0f} minutes", flush=True)
        time.sleep(max(0.0, begin + 60 * options.minutes - time.monotonic()))
        second = _measure(workloads, batch_sizes, Path(home))
    spreads = {way: _spread(way, first[way], second[way]) for way in first}
    for way in ("adjacent", "apart"):
        print(f"spread of paired speed-ups / of those measured {way}: {spreads['paired'] / spreads[way]:.2f}")
    return int(spreads["paired"] > 0.5 * spreads["apart"])


def _measure(workloads: list[str], batch_sizes: list[int], home: Path) -> dict[str, Speedups]:
    """Measure everything once in each way."""

    def study(name: str, compilers: list[str], slice_repetitions: int) -> dict[Cell, Mapping[str, float]]:
        return _cells(_study(name, workloads, [BASELINE, *compilers], batch_sizes, slice_repetitions), home)

    found = {}
    for way, slice_repetitions in (("paired", 10), ("adjacent", REPETITIONS)):
        cells = study(way, COMPILERS, slice_repetitions)
        found[way] = {cell: _paired(metrics) for cell, metrics in cells.items() if cell[1] != BASELINE}
    baseline = study("apart", [], REPETITIONS)
    found["apart"] = {
        (label, name, batch): Speedup(baseline[label, BASELINE, batch]["latency_p50_ms"] / metrics["latency_p50_ms"])
        for compiler in COMPILERS
        # A study has the baseline beside each compiler; here each is compared with the one that was measured first.
        for (label, name, batch), metrics in study(f"apart-{compiler}", [compiler], REPETITIONS).items()
        if name == compiler
    }
    return found


def _paired(metrics: Mapping[str, float]) -> Speedup:
    """The speed-up that the study itself derived from rounds."""
    return Speedup(metrics["speedup"], metrics.get("speedup_log_se"), metrics.get("speedup_df"))


def _study(
    name: str, workloads: list[str], compilers: list[str], batch_sizes: list[int], slice_repetitions: int
) -> Study:
    return parse(
        {
            "name": f"repeatability-{name}",
            "workloads": workloads,
            "compilers": compilers,
            "batch_sizes": batch_sizes,
            "repetitions": REPETITIONS,
            "slice_repetitions": slice_repetitions,
            "limits": {"cell_seconds": 60, "slice_seconds": 60},
        }
    )


def _cells(study: Study, home: Path) -> dict[Cell, Mapping[str, float]]:
    """The metrics of all cells that were measured, whatever their verdict says of the machine."""
    lanes = run_study(study, home=home, offline=True, resume="never").record.lanes.values()
    return {
        (lane.lane.label, lane.lane.compiler, batch): cell.metrics
        for lane in lanes
        for batch, cell in lane.cells.items()
        if "latency_p50_ms" in cell.metrics
    }


def _spread(way: str, first: Speedups, second: Speedups) -> float:
    differences = {cell: math.log(second[cell].value / first[cell].value) for cell in first if cell in second}
    within = []
    for cell, difference in differences.items():
        label, compiler, batch = cell
        line = f"{way:8}  {label} {compiler} batch {batch}: {first[cell].value:.3f}, {100 * difference:+.2f} %"
        own = _reach([first[cell], second[cell]], None)
        if own is not None:
            wider = _reach([first[cell], second[cell]], _between(first, second, label))
            within.append((abs(difference) <= own, wider is not None and abs(difference) <= wider))
            line += f" (intervals of both: ± {100 * own:.2f} %"
            line += f"; with the hour: ± {100 * wider:.2f} %)" if wider is not None else ")"
        print(line)
    spread = math.sqrt(sum(value**2 for value in differences.values()) / len(differences))
    print(f"{way}: root mean square of the differences {100 * spread:.2f} % over {len(differences)} cells", flush=True)
    if within:
        own_rounds, with_hour = (sum(kind) for kind in zip(*within, strict=True))
        print(
            f"{way}: {own_rounds} of {len(within)} differences are within their intervals, {with_hour} where these allow for "
            "what the hour changed for the other workloads",
            flush=True,
        )
    return spread


def _between(first: Speedups, second: Speedups, but: str) -> Between | None:
    """What the hour has changed beyond the intervals, by all workloads but one."""
    cells = [cell for cell in first if cell in second and cell[0] != but and first[cell].error and second[cell].error]
    taken = [
        (study, number, times[cell]) for number, cell in enumerate(cells) for study, times in enumerate((first, second))
    ]
    return between_studies.estimated(
        np.log([speedup.value for _, _, speedup in taken]),
        np.array([speedup.error for _, _, speedup in taken], float),
        np.array([number for _, number, _ in taken], int),
        np.array([study for study, _, _ in taken], int),
    )


def _reach(speedups: list[Speedup], between: Between | None) -> float | None:
    """How far the intervals of two speed-ups reach together, on the logarithmic scale; None where one has none."""
    if any(speedup.error is None or speedup.freedom is None for speedup in speedups):
        return None
    estimates = Estimate(
        np.zeros(2),
        np.array([speedup.error for speedup in speedups], float),
        np.array([speedup.freedom for speedup in speedups], float),
    )
    if between is not None:
        estimates = between_studies.widened(estimates, [("", "")] * 2, {("", ""): between})
    return float(np.hypot(*(quantile(estimates.freedom) * estimates.error)))


if __name__ == "__main__":
    raise SystemExit(main())
