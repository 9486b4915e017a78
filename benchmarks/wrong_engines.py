"""What does a study say of engines that the ONNX conformance cases show to be wrong?

``python benchmarks/wrong_engines.py [--results FILE] [--compilers NAME,...] [--home DIR]``

`FILE` is what ``benchmarks/onnx_conformance.py`` has written. Every case that a compiler computes otherwise than the standard, while
eager execution or ONNX Runtime by itself has it right, becomes a workload of a real study with that compiler. A study does
not know what the standard says: it compares with its own baseline, on inputs of its own besides those of the case. Printed are
the verdicts. Exit code 1: one is ``ok``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from support.onnx_cases import Case, cases
from support.onnx_page import read

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import WorkloadRef

COMPILERS = "torchscript,torch-compile,openvino,tvm"
BEYOND = ("light_squeezenet",)
"""Has a thousand equal scores of 1e10, where rounding alone makes any distribution of them."""
REFERENCES = ("identity", "bare")


def main() -> int:
    """Run the studies, and count what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir(), "onnx-conformance.jsonl"))
    parser.add_argument("--compilers", default=COMPILERS)
    parser.add_argument("--home", type=Path, help="a directory in which the studies stay")
    options = parser.parse_args()
    place = nullcontext(str(options.home)) if options.home else tempfile.TemporaryDirectory()
    found = 0
    with place as home:
        for compiler in options.compilers.split(","):
            names = wrong(options.results, compiler)
            chosen = [case for case in cases() if case.name in names]
            verdicts = dict(judged(chosen, compiler, Path(home)))
            found += sum(verdict == Verdict.OK for verdict in verdicts.values())
            counted = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts.values()).most_common())
            print(
                f"{compiler}: {len(verdicts)} of {len(names)} cases that it gets wrong, as studies: {counted or 'none'}"
            )
            print(
                *(f"  ok: {name}" for name, verdict in verdicts.items() if verdict == Verdict.OK), sep="\n", flush=True
            )
    return int(found > 0)


def wrong(results: Path, compiler: str) -> set[str]:
    """The cases that a compiler computes otherwise, while somebody else has them right."""
    verdicts: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read(results):
        verdicts[row.case][row.compiler] = row.verdict
    return {
        name
        for name, by in verdicts.items()
        if by.get(compiler) == "wrong" and name not in BEYOND and "ok" in {by.get(other) for other in REFERENCES}
    }


def judged(chosen: list[Case], compiler: str, home: Path) -> Iterator[tuple[str, Verdict]]:
    """The verdict on the engine of each case, from one study for each batch size."""
    of_size: dict[int, list[WorkloadRef]] = defaultdict(list)
    names = {case.name.replace("#", "-"): case.name for case in chosen}
    for folder, case in zip(names, chosen, strict=True):
        try:
            workload, batch = case.workload(home / folder)
        except NGraphError as error:
            print(f"  no workload: {case.name}: {error}")
        else:
            of_size[batch].append(workload.ref)
    for batch, refs in of_size.items():
        workloads = [{"ref": ref.model, "options": dict(ref.options)} for ref in refs]
        study = {"name": "wrong", "device": "host", "workloads": workloads, "compilers": [compiler], "repetitions": 1}
        record = run_study(parse({**study, "batch_sizes": [batch]}), home=home, offline=True, resume="never").record
        for lane in record.lanes.values():
            ref = WorkloadRef.recorded(lane.lane.workload)
            if lane.lane.compiler == compiler and ref is not None:
                yield from ((names[Path(ref.target).parent.name], cell.verdict) for cell in lane.cells.values())


if __name__ == "__main__":
    raise SystemExit(main())
