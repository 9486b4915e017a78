"""Does rounding ever make a right engine a wrong one, or hide a wrong one? Graphs in half, in bfloat16, quantised, and of long sums.

``python benchmarks/low_precision_graphs.py [--kinds NAME,...] [--count 200] [--faults 25] [--compilers NAME,...]``, from the
root of the repository.

*Refused*: an engine has the verdict ``parity_failed``, and its error against float64 is within four times the larger of eager
execution's, that of the same sums taken term by term, and that of rounding to steps a little later or earlier in any one place.
*Beyond*: it is refused, and its error is larger. *Not found*: a model with a planted fault (a wrong scale, a zero point off by one, a bias that is missing, an overflow
in half) is given as an engine of the right one, and the verdict is none against it. Of long sums there are half as many graphs.
Quantised weights have 7 bits where products of 8 saturate, as runtimes ask for on such processors. Exit code 1:
an engine was refused, or a fault not found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import chunks, records
from support.definition import widened
from support.graph_verdicts import Said, prepared, said
from support.low_precision_onnx import BATCH, FAULTS, KINDS, faulty, in_turn, low_precision_graph

from mlflow_ngraph import parity
from mlflow_ngraph.compilers.host import saturates_8_bit
from mlflow_ngraph.errors import NGraphError

COMPILERS = ("identity", "onnxruntime", "openvino")
TIMES = 4.0
STEP = 1 / 128
"""Share of a step by which kernels of integers are off that round biases and factors as well."""
FOUND_BY = "identity"
"""What runs the models with faults."""
Arrays = Sequence[NDArray[Any]]


def main() -> int:
    """Run the graphs, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--count", type=int, default=200, help="graphs of each kind")
    parser.add_argument("--faults", type=int, default=25, help="graphs of each fault")
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    records.add_option(parser)
    options = parser.parse_args()
    if options.child:
        chunks.serve(lambda item: graph(item, options.compilers.split(",")))
    items = [
        f"{kind}:{seed}"
        for kind in options.kinds.split(",")
        for seed in range(options.count // (2 if kind == "sums" else 1))
    ]
    items += [f"{fault.replace(' ', '-')}:{seed}" for fault in FAULTS for seed in range(options.faults)]
    counts: Counter[tuple[str, str, str]] = Counter()
    for item, found in chunks.results(__file__, items, "--compilers", options.compilers):
        kind = item.partition(":")[0]
        for compiler, one in found.items():
            word, reason = one if isinstance(one, list) else ("broke", one)
            counts[kind, compiler, word] += 1
            if word not in ("ok", "found", "unsupported"):
                print(f"{item} {compiler}: {word}: {reason}", flush=True)
    for (kind, compiler, word), count in sorted(counts.items()):
        print(f"{kind} | {compiler} | {word}: {count}")
    total = Counter[str]()
    for (_, _, word), count in counts.items():
        total[word] += count
    planted = total["found"] + total["not found"]
    records.keep(
        options,
        "low_precision_graphs",
        records.at_most("right engines refused", total["refused"], 0, f"of {sum(total.values()) - planted}"),
        records.at_least("planted faults found", total["found"], planted, f"of {planted}"),
    )
    return int(any(total[word] for word in ("refused", "not found", "broke")))


def graph(item: str, compilers: Sequence[str]) -> dict[str, Any]:
    """A graph through all compilers, or one with a fault."""
    kind, _, seed = item.partition(":")
    directory = Path(tempfile.mkdtemp(prefix="low-"))
    try:
        fault = kind.replace("-", " ")
        if fault in FAULTS:
            return {FOUND_BY: _planted(fault, int(seed), directory)}
        model = low_precision_graph(kind, int(seed), narrow=saturates_8_bit())
        source = prepared(model, directory, BATCH)
        return {name: _told(said(source, name, directory / name, BATCH), model, kind) for name in compilers}
    except NGraphError as error:
        return {"all": ["unsupported", str(error)]}
    except Exception:  # noqa: BLE001 - a mistake of this script is told by its graph
        return {"broke": traceback.format_exc(limit=-3)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _planted(fault: str, seed: int, directory: Path) -> list[str]:
    model = low_precision_graph(FAULTS[fault], seed)
    right = prepared(model, directory / "right", BATCH)
    wrong = prepared(faulty(model, fault, seed), directory / "wrong", BATCH)
    about = said(right, FOUND_BY, directory / "engine", BATCH, of=wrong)
    return ["found" if about.verdict == "parity_failed" else "not found", f"{about.verdict}: {about.reason}"]


def _told(about: Said, model: onnx.ModelProto, kind: str) -> list[str]:
    """What a verdict is worth, and its reason."""
    if about.verdict != "parity_failed":
        return [about.verdict, about.reason]
    inputs, outputs, eager = (about.arrays(name) for name in ("input", "engine", "reference"))
    exact, *others = (
        [np.asarray(array) for array in ReferenceEvaluator(wide).run(None, {"x": np.asarray(inputs[0], np.float64)})]
        for wide in (widened(model), *_beside_steps(widened(model)))
    )
    others += [eager, [in_turn(model, inputs[0])]] if kind == "sums" else [eager]
    error, *known = (
        max(parity.errors(one, true, native).largest for one, true, native in zip(several, exact, eager, strict=True))
        for several in (outputs, *others)
    )
    told = f"{about.reason}; error {error:.1e}, of others {', '.join(f'{one:.1e}' for one in known)}"
    return ["refused" if error <= TIMES * max(known) else "beyond", told]


def _beside_steps(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """The graph with one of its roundings to steps a little later, or earlier."""
    scales = {tensor.name: float(numpy_helper.to_array(tensor).max()) for tensor in model.graph.initializer}
    for place, node in enumerate(model.graph.node):
        if node.op_type != "QuantizeLinear":
            continue
        for by in (-STEP, STEP):
            moved = onnx.ModelProto()
            moved.CopyFrom(model)
            moved.graph.initializer.append(numpy_helper.from_array(np.array(by * scales[node.input[1]]), "by"))
            moved.graph.node.insert(place, helper.make_node("Add", [node.input[0], "by"], ["moved"]))
            moved.graph.node[place + 1].input[0] = "moved"
            yield moved


if __name__ == "__main__":
    sys.exit(main())
