"""What TensorRT for RTX makes of networks on a machine without its GPU: build engines, and write the page about them.

``python benchmarks/rtx_engines.py [--home DIR] [--build-for gpu:sm89] [--only TEXT,...]`` builds what is missing of the
paper's fifteen models, a text encoder, and the nine ``light_*`` networks that come with the package onnx, in fp32 and
fp16 at batch size 1. ``--from DIR [--from DIR]`` only renders what study directories hold. The page is
docs/reference/tensorrt-rtx-engines.md unless ``--output FILE`` says otherwise.

No engine is loaded: without the GPU there is nothing that could. See docs/how-to/build-for-another-device.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx.backend.test import loader

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.compilers.explanation import Explanation, file_name
from mlflow_ngraph.devices.fingerprint import fingerprint
from mlflow_ngraph.devices.probes import cpu
from mlflow_ngraph.execute import replay, study_directories
from mlflow_ngraph.execute.record import LaneRecord, StudyRecord
from mlflow_ngraph.study import Study, load
from mlflow_ngraph.tables.sheet import Sheet, markdown, number

COMPILER = "tensorrt-rtx"
PAGE = Path(__file__).parents[1] / "docs/reference/tensorrt-rtx-engines.md"
ENCODER = {
    "ref": "torch:mlflow_ngraph.workloads.transformer:encoder",
    "options": {
        "inputs": [
            {"name": "tokens", "shape": ["batch", 64], "dtype": "int64", "high": 8192},
            {"name": "mask", "shape": ["batch", 64], "dtype": "int64", "high": 2},
            {"name": "types", "shape": ["batch", 64], "dtype": "int64", "high": 2},
        ]
    },
}
COLUMNS = (
    *("model", "precision", number("ONNX nodes"), number("layers"), number("convert [s]"), number("build [s]")),
    *(number("plan [MB]"), "verdict"),
)
MB = 1e6


def groups() -> dict[str, list[Any]]:
    """Workloads by the name of their study."""
    light = sorted(Path(loader.DATA_DIR, "light").glob("*.onnx"))
    return {
        "rtx-encoder": [ENCODER],
        "rtx-light": [f"onnx:{path}" for path in light],
        "rtx-paper": [choice.model_dump() for choice in load("paper-models").workloads],
    }


def built(name: str, workloads: Sequence[Any], build_for: str, home: Path | None) -> tuple[StudyRecord, Path]:
    """The record of one study and where it lies, after building what is missing."""
    from mlflow_ngraph.runner import run_study

    study = Study(
        name=name,
        workloads=list(workloads),
        compilers=[COMPILER],
        batch_sizes=[1],
        precision=["fp32", "fp16"],
        build_for=build_for,
        builds="alone",  # so that the seconds can be compared
        cache="off",
    )
    machine = fingerprint()["digest"]
    key = study_directories.study_key(study, study.device, machine)
    begun = study_directories.newest(home_directory.directory(home), key, machine) is not None
    outcome = run_study(study, home=home, offline=True, resume="always" if begun else "never")
    return outcome.record, outcome.directory


def rows(record: StudyRecord, directory: Path) -> Iterator[list[str]]:
    """A row for each engine."""
    for lane in record.lanes.values():
        for cell in lane.cells.values():
            said = str(cell.verdict) if str(cell.verdict) == "built" else f"**{cell.verdict}**: {cell.reason}"
            yield [lane.lane.label, lane.lane.precision, *_facts(lane, cell.batch, directory), said]


def _facts(lane: LaneRecord, batch: int, directory: Path) -> list[str]:
    engine = lane.engine_at(batch)
    if engine is None:
        return [""] * 5
    facts, stages = engine.flags, engine.stages
    told = Explanation.read(directory / engine.directory / file_name(batch))
    counts = [str(told.nodes_before), str(told.nodes_after)]
    size = f"{int(str(facts['plan_bytes'])) / MB:.1f}"
    return [*counts, f"{stages['convert']:.1f}", f"{stages['compile']:.1f}", size]


def page(found: Sequence[tuple[StudyRecord, Path]]) -> str:
    """The page in Markdown."""
    records = [record for record, _ in found]
    made = [row for record, directory in found for row in rows(record, directory)]
    right = sum(row[-1] == "built" for row in made)
    versions = {record.versions[COMPILER] for record in records}
    targets = {str(record.study["build_for"]) for record in records}
    about = (
        f"{right} of {len(made)} engines were built by TensorRT for RTX {', '.join(sorted(versions))} for "
        f"{', '.join(f'`{target}`' for target in sorted(targets))} at batch size 1 on {cpu().label}, which has no GPU. "
        "**None of them was ever run**: what they compute and how fast is unknown until a machine with such a GPU takes "
        "them. Written by `python benchmarks/rtx_engines.py`; what was refused was refused in the library's own words."
    )
    columns = (
        "*Layers* are those that the builder lists, in the words of the engine inspector. *Convert* is reading, 16 bits and "
        "parsing, *build* the library's own work; other work may have shared the processors meanwhile."
    )
    head = ["# Engines of TensorRT for RTX, built without a GPU", "", about, "", columns, ""]
    return "\n".join([*head, markdown(Sheet("", COLUMNS, made)), ""])


def main() -> int:
    """Build, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--home", type=Path)
    parser.add_argument("--build-for", default="gpu:sm89")
    parser.add_argument("--only", default="", help="parts of the names of workloads")
    parser.add_argument("--from", dest="directories", type=Path, action="append", default=[])
    parser.add_argument("--output", type=Path, default=PAGE)
    given = parser.parse_args()
    if given.directories:
        found = [(replay.load(directory), directory) for directory in given.directories]
    else:
        chosen = {
            name: [one for one in workloads if any(text in str(one) for text in given.only.split(","))]
            for name, workloads in groups().items()
        }
        found = [built(name, some, given.build_for, given.home) for name, some in chosen.items() if some]
    given.output.write_text(page(found), encoding="utf-8")
    print(f"{given.output}: {sum(len(record.lanes) for record, _ in found)} engines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
