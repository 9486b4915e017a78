"""Miscompilations that were reported publicly, with old releases that have them: does a study find them, and is the operator named?

``python benchmarks/miscompilations.py --environments DIR [--cases NAME,...] [--home DIR]``

Each of `support.reported.CASES` is a network in which an old release of ONNX Runtime, OpenVINO or TVM computes some nodes wrongly. The
releases are installed by pip, each into an environment of its own in ``--environments``, and stay there. A study of the network with the
release has to say ``parity_failed``: the reference outputs and the rules are those of the packages that are installed here. Then
``mlflow-ngraph results bisect`` has to name the operator, and to write a model of at most ten nodes. Printed is a line for each case.
Exit code 1: there are fewer than 20 cases, fewer than 18 are found within 60 s each, or fewer than 15 are named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from support import records
from support.compilers import registered
from support.old_releases import ENTRY, NAME
from support.reported import CASES, Case
from support.resumed import BRIEFLY

from mlflow_ngraph.runner import run_study
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.study import parse

FEWEST, FOUND, NAMED = 20, 18, 15
SECONDS = 60.0
"""What a study may take from its beginning to the verdict."""
NODES = 10
_LIMIT_S = 600.0


@dataclass
class Outcome:
    """What became of a case."""

    case: Case
    nodes: int
    """Of the network."""
    verdict: str
    reason: str
    seconds: float
    """What the study took."""
    operator: str = ""
    """That was named."""
    smallest: int = 0
    """Nodes of the model that was written."""
    said: str = ""
    """Why nothing was named."""
    search_s: float = 0.0

    @property
    def found(self) -> bool:
        """Whether the engine is wrong by the study, in time."""
        return self.verdict == "parity_failed" and self.seconds <= SECONDS

    @property
    def named(self) -> bool:
        """Whether a guilty operator was named, and a small model written."""
        return self.operator in self.case.guilty and 0 < self.smallest <= NODES


def main() -> int:
    """Run what was asked for, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, help="where the releases are installed")
    parser.add_argument("--cases", help="these alone")
    parser.add_argument("--home", type=Path, help="a directory in which the studies stay")
    records.add_option(parser)
    options = parser.parse_args()
    wanted = options.cases.split(",") if options.cases else [case.name for case in CASES]
    place = nullcontext(str(options.home)) if options.home else tempfile.TemporaryDirectory()
    outcomes = []
    print("| case | report | release | what is wrong | nodes | verdict | s | named | of nodes | s |")
    print("|:--|:--|:--|:--|--:|:--|--:|:--|--:|--:|")
    with registered(NAME, ENTRY), place as home:
        for case in CASES:
            if case.name in wanted:
                outcomes.append(_outcome(case, options.environments, Path(home).absolute() / case.name))
                print(_line(outcomes[-1]), flush=True)
    return _report(outcomes, options)


def _outcome(case: Case, environments: Path, home: Path) -> Outcome:
    """Measure a case, and look for its operator where it is found."""
    home.mkdir(parents=True, exist_ok=True)
    python = case.release.environment(environments)
    model = case.model()
    onnx.save(model, str(home / "model.onnx"))
    flags = {"runtime": case.release.runtime, "version": case.release.version, "python": str(python)}
    start = time.monotonic()
    run = run_study(
        parse(
            {
                "name": case.name,
                "device": "host",
                "workloads": [{"ref": f"onnx:{home / 'model.onnx'}", "options": _options(case, model, home)}],
                "compilers": [{"name": NAME, "flags": flags}],
                "batch_sizes": [model.graph.input[0].type.tensor_type.shape.dim[0].dim_value],
                "threads": 1,
                **BRIEFLY,
                "limits": {"reload_seconds": 0},
                "cache": "off",
            }
        ),
        home=home,
        offline=True,
        resume="never",
    )
    spent = time.monotonic() - start
    (lane,) = (lane for lane in run.record.lanes.values() if lane.lane.compiler == NAME)
    ((batch, cell),) = lane.cells.items()
    outcome = Outcome(case, len(model.graph.node), cell.verdict.value, cell.reason, spent)
    if cell.verdict == "parity_failed":
        _explained(outcome, lane.lane.cell(batch), home)
    return outcome


def _options(case: Case, model: onnx.ModelProto, home: Path) -> dict[str, Any]:
    """Samples for networks with integers: which ones are meant, a file does not say."""
    if not case.largest:
        return {}
    rng = np.random.default_rng(0)
    samples = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn: Any = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, case.largest, shape)
        samples[value.name] = drawn.astype(dtype)
    save_arrays(home / "samples.npz", **samples)
    return {"samples": str(home / "samples.npz")}


def _explained(outcome: Outcome, cell: str, home: Path) -> None:
    """Ask the command line for the first wrong operator."""
    into = Path(tempfile.mkdtemp(dir=home)) / "why"
    ended = subprocess.run(
        [sys.executable, "-m", "mlflow_ngraph", "results", "bisect", cell, "--json", "--home", home, "--into", into],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if ended.returncode != 0:
        outcome.said = " ".join(ended.stderr.split())[-200:]
        return
    answer = json.loads(ended.stdout)
    outcome.operator, outcome.said, outcome.search_s = answer["operator"], answer["right"], answer["seconds"]
    if (into / "model.onnx").is_file():
        outcome.smallest = len(onnx.load(str(into / "model.onnx")).graph.node)


def _line(outcome: Outcome) -> str:
    case = outcome.case
    verdict = outcome.verdict if outcome.verdict == "parity_failed" else f"{outcome.verdict}: {outcome.reason}"
    return (
        f"| {case.name} | {case.report} | {case.release.runtime} {case.release.version} | {case.what} | {outcome.nodes} "
        f"| {verdict} | {outcome.seconds:.0f} | {outcome.operator or outcome.said} | {outcome.smallest} "
        f"| {outcome.search_s:.0f} |"
    )


def _report(outcomes: list[Outcome], options: argparse.Namespace) -> int:
    found = sum(outcome.found for outcome in outcomes)
    named = sum(outcome.named for outcome in outcomes)
    print(f"{len(outcomes)} cases (at least {FEWEST})")
    print(f"{found} found within {SECONDS:.0f} s (at least {FOUND})")
    print(f"{named} with the operator and a model of at most {NODES} nodes (at least {NAMED})")
    of = f"of {len(outcomes)}"
    records.keep(
        options,
        "miscompilations",
        records.at_least("cases", len(outcomes), FEWEST),
        records.at_least(f"found within {SECONDS:.0f} s", found, FOUND, of),
        records.at_least("guilty operator named by bisect", named, NAMED, of, f"with a model of at most {NODES} nodes"),
    )
    return int(len(outcomes) < FEWEST or found < FOUND or named < NAMED)


if __name__ == "__main__":
    raise SystemExit(main())
