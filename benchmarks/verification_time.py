"""How long does it take to verify an engine of the paper's models? The fifteen at batch 1, through every compiler.

``python benchmarks/verification_time.py [--home DIR] [--workloads TEXT,...] [--compilers NAME,...]``, from the root of the
repository. The study is resumed when the benchmark is run again. Exit code 1: a cell is not ``ok``, or took longer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import records
from support.resumed import BRIEFLY, measured

from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.study import load, parse

COMPILERS = "identity,torchscript,torch-compile,onnxruntime,openvino,tvm"
SECONDS = 10.0
"""The longest that a cell's verification may take."""


def main() -> int:
    """Measure what is missing, and list each cell's verdict and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--workloads", default="", help="only those whose reference contains one of these texts")
    parser.add_argument("--compilers", default=COMPILERS, help="without tuning")
    records.add_option(parser)
    options = parser.parse_args()
    models = [one.ref for one in load("paper-models").workloads]
    content = {
        "name": "verification-time",
        "workloads": [ref for ref in models if any(text in ref for text in options.workloads.split(","))],
        "compilers": options.compilers.split(","),
        "batch_sizes": [1],
        **BRIEFLY,
    }
    directory = measured(parse(content), options.home)
    seconds = {
        event["lane"]: event["seconds"] for event in journal.read(directory) if event["event"] == "cell_verified"
    }
    failed = 0
    lanes = replay.load(directory).lanes
    for lane_id, lane in lanes.items():
        (cell,) = lane.cells.values()
        took = seconds.get(lane_id, float("nan"))
        good = cell.verdict.value == "ok" and took <= SECONDS
        failed += not good
        print(f"{lane.lane.label:20} {lane.lane.compiler:14} {cell.verdict.value:14} {took:5.1f} s  {cell.reason}")
    longest = max(seconds.values(), default=0.0)
    print(f"{failed} cells are not ok or took longer than {SECONDS:.0f} s; longest {longest:.1f} s")
    count = len(lanes)
    good_cells = records.at_least(f"cells ok within {SECONDS:.0f} s", count - failed, count, f"of {count}")
    records.keep(options, "verification_time", good_cells, records.at_most("longest", longest, SECONDS, "s", digits=1))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
