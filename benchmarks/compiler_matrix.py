"""Which compiler does which model: run or resume the studies of the matrix, and write its page.

``python benchmarks/compiler_matrix.py [--home DIR] [--studies NAME,...] [--anew]`` measures what is missing, and
``python benchmarks/compiler_matrix.py --from DIR [--from DIR]`` only renders what study directories hold. Parts of a
matrix, measured one by one with ``--workloads TEXT,...``, become one table. ``--output FILE`` is
docs/reference/compiler-matrix.md by default.

A study that was interrupted goes on. One that came to its end is measured anew only with ``--anew``; without it, its
cells that crashed, timed out or ran out of memory get another try.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from support.matrix import markdown, merged

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.devices.fingerprint import fingerprint
from mlflow_ngraph.devices.registry import create
from mlflow_ngraph.execute import replay, study_directories
from mlflow_ngraph.execute.journal import Event
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.study import Study, load

STUDIES = "compiler-matrix,compiler-matrix-bf16"
PAGE = Path(__file__).parents[1] / "docs/reference/compiler-matrix.md"


class Said:
    """Prints what a study does, a line for each engine and each verdict."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def on_event(self, event: Event) -> None:
        """Print an event that a person waits for."""
        if event["event"] == "session_started":
            self._names = {
                lane["id"]: f"{lane['label']}/{lane['compiler_label']}/{lane['precision']}" for lane in event["lanes"]
            }
        elif event["event"] == "engine_built":
            print(f"  {self._names[event['lane']]} compiled", flush=True)
        elif event["event"] == "cell_finished":
            print(f"{self._names[event['lane']]}/b{event['batch']} {event['verdict']} {event['reason']}", flush=True)


def measured(study: Study, home: Path | None, workloads: str, *, anew: bool) -> StudyRecord:
    """The record of a study, or of a part of it, after measuring what is missing."""
    from mlflow_ngraph.runner import run_study

    chosen = [choice for choice in study.workloads if any(text in choice.ref for text in workloads.split(","))]
    if not chosen:
        sys.exit(f"study {study.name} has no workload like {workloads}")
    study = study.model_copy(update={"workloads": chosen})
    machine = fingerprint()["digest"]
    key = study_directories.study_key(study, create(study.device).name, machine)
    begun = study_directories.newest(home_directory.directory(home), key, machine) is not None
    resume = "never" if anew else "always" if begun else "auto"
    return run_study(study, resume=resume, home=home, offline=True, observer=Said()).record  # type: ignore[arg-type]


def main() -> int:
    """Measure or read, and write the page; 1 if a cell is neither ok nor unsupported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default=STUDIES, help="ready-made studies or study files")
    options = parsed(parser, PAGE)
    return publish(
        [load(name) for name in options.studies.split(",")],
        options,
        "Compiler matrix",
        "python benchmarks/compiler_matrix.py",
    )


def parsed(parser: argparse.ArgumentParser, page: Path) -> argparse.Namespace:
    """The arguments of a script that writes a matrix."""
    parser.add_argument("--home", type=Path)
    parser.add_argument("--workloads", default="", help="only those whose reference contains one of these texts")
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--from", dest="directories", type=Path, action="append", default=[])
    parser.add_argument("--output", type=Path, default=page)
    return parser.parse_args()


def publish(studies: Sequence[Study], options: argparse.Namespace, title: str, made_by: str) -> int:
    """Measure or read, and write a page; 1 if a cell is neither ok nor unsupported."""
    if options.directories:
        records = [replay.load(directory) for directory in options.directories]
    else:
        records = [measured(study, options.home, options.workloads, anew=options.anew) for study in studies]
    records = merged(records)
    options.output.write_text(markdown(records, title, made_by), encoding="utf-8")
    wrong = [
        f"{lane.lane.label}/{lane.lane.compiler_label}/{lane.lane.precision}/b{batch}: {cell.verdict} {cell.reason}"
        for record in records
        for lane in record.lanes.values()
        for batch, cell in lane.cells.items()
        if cell.verdict not in ("ok", "unsupported")
    ]
    print(f"\nwrote {options.output}", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
