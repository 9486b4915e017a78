"""Does a study claim differences that are not there, and does it see small ones that are?

``python benchmarks/false_claims.py [--background] [--repetitions 120] [--workloads models|blocks|REF,...]
[--reload-seconds 20] [--keep DIRECTORY]``

Each of ten small models, or of ten blocks, which load faster, at four batch sizes is measured with eager execution under
two names (they differ in a flag that does nothing on a CPU) and with eager execution made slower by 3 %. A claim is a
cell with verdict ok whose 95 % interval of the speed-up excludes 1. At most 5 % of the equal cells may be claimed to
differ, and at least 95 % of the slower ones must be called slower. With ``--background`` another process keeps a
processor busy a third of the time, in bursts of 0.1 to 3 s. Exit code 1: one of the two is not met.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from support.compilers import registered
from support.load import bursts

from mlflow_ngraph.execute.record import CellRecord, StudyRecord
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.verdicts import Verdict

MODELS = (
    "timm:resnet10t", "timm:mobilenetv3_small_100", "timm:regnetx_002", "timm:deit_tiny_patch16_224", "timm:lcnet_050",
    "timm:convnext_atto", "timm:efficientnet_b0", "timm:resnet18", "timm:mixer_s32_224", "timm:repvgg_a0",
)  # fmt: skip
BLOCKS = (
    "block:conv?width=64&depth=1&image_size=56", "block:conv?width=64&depth=3&image_size=56",
    "block:conv?width=128&depth=2&image_size=28", "block:conv?width=32&depth=6&image_size=112",
    "block:conv?width=256&depth=1&image_size=28", "block:mha?width=128&depth=6&tokens=64",
    "block:mha?width=256&depth=6&tokens=196", "block:mha?width=512&depth=2&tokens=128",
    "block:mha?width=192&depth=12&tokens=197", "block:mha?width=768&depth=1&tokens=64",
)  # fmt: skip
WORKLOADS = {"models": MODELS, "blocks": BLOCKS}
SLICE = 10
"""Repetitions in a row, in one of twelve fresh processes."""
SAME, SLOWER = "identity[cudnn_benchmark=True]", "slower"

BURSTS = 0.1, 3.0, 1 / 3
"""The shortest and the longest of the background, in seconds, and the share of the time."""


def main() -> int:
    """Measure once and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--background", action="store_true", help="beside a load that comes and goes")
    parser.add_argument("--repetitions", default="120", help="a number, or auto")
    parser.add_argument("--workloads", default="models", help="models, blocks, or references")
    parser.add_argument("--reload-seconds", type=float, default=20.0, help="0: one process for all rounds")
    parser.add_argument("--keep", type=Path, help="a folder in which the study stays")
    options = parser.parse_args()
    repetitions = options.repetitions if options.repetitions == "auto" else int(options.repetitions)
    study = parse(
        {
            "name": "false-claims",
            "workloads": list(WORKLOADS.get(options.workloads) or options.workloads.split(",")),
            "compilers": ["identity", {"name": "identity", "flags": {"cudnn_benchmark": True}}, "slower"],
            "batch_sizes": [1, 2, 4, 8],
            "repetitions": repetitions,
            "slice_repetitions": SLICE,
            "limits": {"cell_seconds": 30, "slice_seconds": 1, "reload_seconds": options.reload_seconds},
        }
    )
    load = bursts(*BURSTS) if options.background else nullcontext()
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with registered("slower", "support.slower:Slower"), load, place as home:
        outcome = run_study(study, home=Path(home), offline=True)
    return _report(outcome.record, options.background)


def _report(record: StudyRecord, background: bool) -> int:
    same, slower = list(_cells(record, SAME)), list(_cells(record, SLOWER))
    differing = [cell for cell in same if _claim(cell)]
    called = [cell for cell in slower if _claim(cell) == "slower"]
    print(f"machine: {'a load that comes and goes' if background else 'nothing else running, as far as we know'}")
    for name, cells in (("equal", same), ("3 % slower", slower)):
        marked = sum(bool(cell.noise) for cell in cells)
        reach = sorted(cell.metrics["speedup_ci_high"] / cell.metrics["speedup"] - 1 for cell in cells)
        print(
            f"{name}: {len(cells)} cells, beside {marked} the machine was not quiet; the interval of the speed-up reaches "
            f"± {100 * reach[len(reach) // 2]:.2f} % (median), {100 * reach[-1]:.2f} % at most"
        )
    print(f"equal, but claimed to differ: {len(differing)} of {len(same)}")
    print(f"3 % slower, and called slower: {len(called)} of {len(slower)}")
    for cell in differing:
        print(f"  {record.lanes[cell.lane].lane.label} batch {cell.batch}: {_shown(cell)}")
    for cell in slower:
        if cell not in called:
            print(f"  missed: {record.lanes[cell.lane].lane.label} batch {cell.batch}: {_shown(cell)}; {cell.reason}")
    return int(len(differing) > 0.05 * len(same) or len(called) < 0.95 * len(slower))


def _cells(record: StudyRecord, compiler: str) -> Iterator[CellRecord]:
    for lane in record.lanes.values():
        if lane.lane.compiler_label == compiler:
            yield from (cell for cell in lane.cells.values() if "speedup_ci_low" in cell.metrics)


def _claim(cell: CellRecord) -> str | None:
    if cell.verdict is not Verdict.OK:
        return None
    if cell.metrics["speedup_ci_low"] > 1:
        return "faster"
    return "slower" if cell.metrics["speedup_ci_high"] < 1 else None


def _shown(cell: CellRecord) -> str:
    low, value, high = (cell.metrics[name] for name in ("speedup_ci_low", "speedup", "speedup_ci_high"))
    return f"speed-up {value:.4f} ({low:.4f} to {high:.4f})"


if __name__ == "__main__":
    raise SystemExit(main())
