"""Is a verdict on an ONNX graph ever wrong? Random graphs through identity, ONNX Runtime and OpenVINO.

``python benchmarks/random_graphs.py [--seeds 0-300] [--compilers NAME,...] [--results FILE]``, from the root of the repository.

Graphs of 3 to 15 nodes are drawn from the operators of the standard with random attributes. Each is prepared, compiled and
verified by the package's own parts, in children, and what engines give is judged by two evaluators that the package has no
part in, in double precision: ONNX's reference evaluator, and ONNX Runtime without optimisation.

*Baseline wrong*: the PyTorch form is ``ok`` as an engine, and the definition gives something else. *Refused*: an engine is
right, and the verdict says that it is not. *Accepted*: an engine is wrong, and the verdict is ``ok``. What the definition does
not decide is counted by its cause: a tie, NaN, or rounding that grew. Exit code 1: one of the first three.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from support import chunks, records
from support.definition import Definition, Judgement
from support.graph_verdicts import Said, compiled, prepared, ran, said
from support.random_onnx import BATCH, random_graph

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.trials import draw

COMPILERS = ("identity", "onnxruntime", "openvino")
SEED = 1
"""Of the inputs on which engines are judged; those that they were verified on have another."""
INPUTS = 6
BAD = ("baseline wrong", "refused", "accepted")


def main() -> int:
    """Run the graphs, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-300", help="numbers, or FIRST-END, with commas between them")
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir(), "random-graphs.jsonl"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    records.add_option(parser)
    options = parser.parse_args()
    compilers = options.compilers.split(",")
    if options.child:
        chunks.serve(lambda seed: graph(int(seed), compilers))
    found = {}
    with options.results.open("w", encoding="utf-8") as file:
        for seed, result in chunks.results(__file__, _seeds(options.seeds), "--compilers", options.compilers):
            print(json.dumps({"seed": seed, **result}), file=file, flush=True)
            found[seed] = result
            for line in _lines(seed, result):
                print(line, flush=True)
    return _report(found, options)


def _seeds(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, _, end = part.partition("-")
        found += map(str, range(int(first), int(end)) if end else [int(first)])
    return found


def graph(seed: int, compilers: Sequence[str]) -> dict[str, Any]:
    """One graph through all compilers."""
    directory = Path(tempfile.mkdtemp(prefix=f"graph-{seed}-"))
    try:
        model = random_graph(seed)
        found: dict[str, Any] = {"operators": [node.op_type for node in model.graph.node]}
        try:
            source = prepared(model, directory, BATCH)
        except NGraphError as error:
            return {**found, "unsupported": str(error)}
        found["baseline"] = source.materials.formats["module"].error or "torch"
        definition = Definition(model)
        for compiler in compilers:
            about = said(source, compiler, directory / compiler, BATCH)
            judgement = _judgement(about, source, compiler, directory, definition)
            found[compiler] = {
                "verdict": about.verdict,
                "reason": about.reason,
                "judgement": judgement.word,
                "error": judgement.error,
                "noise": judgement.noise,
                "output": judgement.output,
                "class": classified(about, judgement, compiler),
                "verification": asdict(about.verification) if about.verification else None,
            }
        return found
    except Exception:  # noqa: BLE001 - a mistake of this script is told by its seed
        return {"broke": traceback.format_exc(limit=-3)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _judgement(about: Said, source: Source, compiler: str, directory: Path, definition: Definition) -> Judgement:
    """What the engine is by the definition: on the inputs that accuse it, or on others than it was verified on."""
    if about.verdict == "parity_failed":
        return definition.judge(about.arrays("engine"), about.arrays("input"))
    if about.verdict not in ("ok", "unverified"):
        return Judgement("none")
    example = source.example(BATCH)
    tried = [example, *(draw(source.inputs, BATCH, SEED, number, example)[1] for number in range(INPUTS))]
    engine = compiled(source, compiler, directory / f"{compiler}-again", BATCH)
    try:
        judgements = [definition.judge(ran(engine, arrays), arrays) for arrays in tried]
    finally:
        engine.close()
    wrong = [one for one in judgements if one.word == "wrong"]
    return max(wrong or judgements, key=lambda one: np.nan_to_num(one.error, nan=np.inf))


def classified(about: Said, judgement: Judgement, compiler: str) -> str:
    """What a verdict is worth."""
    if about.verdict == "parity_failed":
        return {"wrong": "found", "right": "refused"}.get(judgement.word, judgement.word)
    if about.verdict == "ok" and judgement.word == "wrong":
        return "baseline wrong" if compiler == "identity" else "accepted"
    return "agreed" if about.verdict == "ok" else about.verdict


def _lines(seed: str, result: dict[str, Any]) -> list[str]:
    """What a reader should look at."""
    if "broke" in result:
        return [f"{seed}: {result['broke']}"]
    return [
        f"{seed} {compiler}: {one['class']}: {one['verdict']}: {one['reason'][:200]} "
        f"(error {one['error']:.1e}, noise {one['noise']:.1e}; baseline {result['baseline'][:120]})"
        for compiler, one in result.items()
        if isinstance(one, dict) and one["class"] not in ("agreed", "unverified", "unsupported")
    ]


def _report(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> int:
    cells = [(compiler, one) for result in found.values() for compiler, one in result.items() if isinstance(one, dict)]
    kinds = list(dict.fromkeys(one["class"] for _, one in cells))
    compilers = list(dict.fromkeys(compiler for compiler, _ in cells))
    counts = Counter((compiler, one["class"]) for compiler, one in cells)
    print("| class |", " | ".join(compilers), "|")
    print("|:--|" + "--:|" * len(compilers))
    for kind in sorted(kinds):
        print(f"| {kind} |", " | ".join(str(counts[compiler, kind]) for compiler in compilers), "|")
    native = sum(result.get("baseline") == "torch" for result in found.values())
    broke = [seed for seed, result in found.items() if "broke" in result]
    print(
        f"{len(found)} graphs, {native} of them with a PyTorch baseline; broke their process: {', '.join(broke) or 'none'}"
    )
    bad = {kind: sum(counts[compiler, kind] for compiler in compilers) for kind in BAD}
    print(*(f"{kind}: {count}" for kind, count in bad.items()), sep="\n")
    of = f"of {len(cells)} cells"
    records.keep(options, "random_graphs", *(records.at_most(kind, count, 0, of) for kind, count in bad.items()))
    return int(any(bad.values()))


if __name__ == "__main__":
    sys.exit(main())
