"""Would lanes that take turns more often be compared more closely? Turns of 1, 3 and 10 repetitions.

``python benchmarks/turns.py [--workload timm:resnet18] [--batch 1] [--studies 6] [--compilers identity,onnxruntime,openvino]``

Studies that differ in ``slice_repetitions`` alone take turns, in an order that chance chooses, each with one process a lane. As many
repetitions of every lane are a group, whatever turns they were taken in. Printed for each length: what a repetition takes beside those
of the longest turns (caches that were not warm would show there), by how much the ratio of two lanes scatters from one group to the
next of the same processes, the seconds of a group, and from both how long an interval of the same length takes.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlflow_ngraph.estimates import Array
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.measure.statistics import typical
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse

LENGTHS = (1, 3, 10)
GROUP = 30
"""Repetitions, of which every length has whole turns."""
GROUPS = 8
"""Of a study."""


@dataclass(frozen=True)
class Measured:
    """One study."""

    logs: dict[str, Array]
    """Logarithms of the medians of groups by compiler; shape (groups,)."""
    seconds: float
    """Of a group of all lanes, with all that is between its turns."""


def main() -> None:
    """Take turns, and print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="timm:resnet18")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--studies", type=int, default=6, help="of each length")
    parser.add_argument("--compilers", default="identity,onnxruntime,openvino")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, studies = random.Random(options.seed), defaultdict[int, list[Measured]](list)
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.studies):
            for length in rng.sample(LENGTHS, len(LENGTHS)):
                study = parse(
                    {
                        "name": f"turns-of-{length}",
                        "workloads": [options.workload],
                        "compilers": options.compilers.split(","),
                        "batch_sizes": [options.batch],
                        "repetitions": GROUP * GROUPS,
                        "slice_repetitions": length,
                        "seed": number,
                        "limits": {"reload_seconds": 0, "verify_seconds": 1, "cell_seconds": 600},
                    }
                )
                record = run_study(study, resume="never", home=Path(home), offline=True).record
                studies[length].append(_measured(record, length))
                print(f"study {number + 1} of {options.studies}, turns of {length}", file=sys.stderr, flush=True)
    _report(studies)


def _measured(record: StudyRecord, length: int) -> Measured:
    logs, begun, ended = {}, [], []
    for lane in record.lanes.values():
        (cell,) = lane.cells.values()
        size = GROUP // length
        medians = [
            np.median(np.concatenate([part["durations_ns"] for part in cell.samples[place : place + size]]))
            for place in range(0, len(cell.samples), size)
        ]
        logs[lane.lane.compiler] = np.log(medians)
        begun.append(min(part["started_ns"] for part in cell.samples))
        ended.append(max(part["started_ns"] + part["wall_s"] * 1e9 for part in cell.samples))
    return Measured(logs, (max(ended) - min(begun)) / 1e9 / GROUPS)


def _report(studies: dict[int, list[Measured]]) -> None:
    longest = studies[max(LENGTHS)]
    known: float | None = None
    for length in sorted(LENGTHS, reverse=True):
        measured = studies[length]
        scatter = _scatter(measured)
        seconds = float(np.mean([one.seconds for one in measured]))
        known = known or scatter**2 * seconds
        print(
            f"turns of {length}: ratios of lanes scatter by {100 * scatter:.2f} % from group to group, a group takes {seconds:.2f} s: "
            f"{scatter**2 * seconds / known:.2f} times as long for the same interval; a repetition takes",
            ", ".join(f"{_beside(measured, longest, name)} ({name})" for name in longest[0].logs),
        )


def _scatter(measured: Sequence[Measured]) -> float:
    """Of the logarithm of the ratio of two lanes, over pairs of lanes and groups of the same study."""
    variances = [
        float(np.var(one.logs[name] - one.logs[other], ddof=1))
        for one in measured
        for name, other in itertools.combinations(one.logs, 2)
    ]
    return float(np.sqrt(np.mean(variances)))


def _beside(measured: Sequence[Measured], others: Sequence[Measured], name: str) -> str:
    """What a repetition takes beside one in turns of another length, study by study."""
    apart = np.exp(
        [np.mean(one.logs[name]) - np.mean(other.logs[name]) for one, other in zip(measured, others, strict=True)]
    )
    ratio = typical(np.asarray(apart))
    if not ratio.known or measured is others:
        return f"{float(ratio.value):.3f} times"
    low, high = ratio.interval()
    return f"{float(ratio.value):.3f} [{low:.3f}, {high:.3f}] times"


if __name__ == "__main__":
    main()
