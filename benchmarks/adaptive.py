"""What ``repetitions: auto`` saves: a study with it, and the same with a hundred repetitions a cell.

``python benchmarks/adaptive.py [STUDY] [--workloads REF,...]``

Prints the timed seconds of both, and for every cell whether its interval is within the wanted reach or says that it is
not. Exit code 1: more than half of the seconds, or an interval that is too wide without a word.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from mlflow_ngraph import study as studies
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.runner import run_study


def main() -> int:
    """Measure both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="quick")
    parser.add_argument("--workloads", help="instead of the study's own")
    options = parser.parse_args()
    changes = {"workloads": options.workloads.split(",")} if options.workloads else {}
    seconds = {}
    with tempfile.TemporaryDirectory() as home:
        for repetitions in ("auto", 100):
            given = studies.load(options.study, {**changes, "repetitions": repetitions})
            record = run_study(given, home=Path(home), offline=True).record
            seconds[repetitions] = _timed(record)
            print(f"repetitions {repetitions}: {seconds[repetitions]:.1f} s timed", flush=True)
            if repetitions == "auto":
                silent = _silent(record, given.adaptive.within)
    share = seconds["auto"] / seconds[100]
    print(f"auto takes {100 * share:.0f} % of the timed seconds; {silent} cells too wide without saying so")
    return int(share > 0.5 or silent > 0)


def _timed(record: StudyRecord) -> float:
    return sum(
        part["wall_s"] for lane in record.lanes.values() for cell in lane.cells.values() for part in cell.samples
    )


def _silent(record: StudyRecord, within: float) -> int:
    """Cells whose interval is wider than wanted, and that do not say so."""
    silent = marked = cells = 0
    for lane in record.lanes.values():
        for cell in lane.cells.values():
            if "throughput" not in cell.metrics:
                continue
            cells += 1
            high = cell.metrics.get("throughput_ci_high")
            too_wide = high is None or high / cell.metrics["throughput"] - 1 > within * 1.0001
            marked += too_wide and bool(cell.reason)
            silent += too_wide and not cell.reason
    print(f"{cells} cells, {cells - marked - silent} within ± {100 * within:g} %, {marked} wider and marked")
    return silent


if __name__ == "__main__":
    raise SystemExit(main())
