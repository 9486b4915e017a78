"""What ``repetitions: auto`` saves: the timed seconds of a study with it, beside what a hundred repetitions a cell need.

``python benchmarks/adaptive.py [STUDY] [--workloads REF,...]`` measures, and
``python benchmarks/adaptive.py --from DIRECTORY`` reads what a study's directory holds.

The hundred repetitions are not measured: of an engine that takes seconds they take an hour. They are what a cell's own
mean repetition takes, a hundred times. Because the slowest engines make nearly all of that, a second figure leaves out
what exceeds the study's cap on a cell: what a hundred repetitions take that are cut off there as well. For every cell
there is said whether its interval is within the wanted reach. Exit code 1: more than half of the seconds, or an interval
that is too wide without a word.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean

from mlflow_ngraph import study as studies
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph.tables.summary import wide_intervals

FIXED = 100


def main() -> int:
    """Measure or read, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="quick")
    parser.add_argument("--workloads", help="instead of the study's own")
    parser.add_argument("--from", dest="directory", type=Path, help="of a study that was measured")
    options = parser.parse_args()
    if options.directory:
        record = replay.load(options.directory)
        study = parse(dict(record.study))
    else:
        changes = {"workloads": options.workloads.split(",")} if options.workloads else {}
        study = studies.load(options.study, {**changes, "repetitions": "auto"})
        with tempfile.TemporaryDirectory() as home:
            record = run_study(study, home=Path(home), offline=True).record
    if study.repetitions != "auto":
        parser.error(f"study {study.name} has {study.repetitions} repetitions, not auto")
    return report(record, study)


def report(record: StudyRecord, study: Study) -> int:
    """Print the seconds and the intervals; 1 where the bar is not met."""
    cells = [cell for lane in record.lanes.values() for cell in lane.cells.values() if cell.samples]
    auto = sum(part["wall_s"] for cell in cells for part in cell.samples)
    fixed = [FIXED * _repetition_s(cell) for cell in cells]
    cap = study.limits.cell_seconds
    capped = sum(min(seconds, cap) for seconds in fixed)
    print(f"repetitions auto: {auto:.1f} s timed, in {len(cells)} cells")
    print(f"{FIXED} repetitions of each: {sum(fixed):.1f} s, auto takes {100 * auto / sum(fixed):.0f} %")
    print(f"the same with each cell cut off at {cap:g} s: {capped:.1f} s, auto takes {100 * auto / capped:.0f} %")
    wide = _too_wide(cells, study.adaptive.within)
    print(wide_intervals(record))
    return int(auto > sum(fixed) / 2 or (wide > 0) != bool(wide_intervals(record)))


def _repetition_s(cell: CellRecord) -> float:
    return fmean(duration for part in cell.samples for duration in part["durations_ns"]) / 1e9


def _too_wide(cells: list[CellRecord], within: float) -> int:
    """How many cells have an interval that is wider than wanted."""
    highs = [(cell.metrics.get("throughput_ci_high"), cell.metrics["throughput"]) for cell in cells]
    wide = sum(high is None or high / value - 1 > within * 1.0001 for high, value in highs)
    print(f"{len(cells) - wide} cells within ± {100 * within:g} %, {wide} wider")
    return wide


if __name__ == "__main__":
    raise SystemExit(main())
