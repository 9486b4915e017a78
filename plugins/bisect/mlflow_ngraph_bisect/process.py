"""Child process that searches for the first wrong operator of an engine; `why` starts it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes.parent import Parent
from mlflow_ngraph_bisect import reproduction
from mlflow_ngraph_bisect.engines import Engines, Job
from mlflow_ngraph_bisect.judging import judge
from mlflow_ngraph_bisect.program import Arrays, Program
from mlflow_ngraph_bisect.search import Search, WrongPart
from mlflow_ngraph_bisect.why import Answer, Question

if TYPE_CHECKING:
    from mlflow_ngraph.workloads.materials import Source

_DOUBTS = 3
"""Corrections of results in float64 before the search gives up."""


def main() -> None:
    """Answer requests."""
    parent = Parent.connect()
    torchvision_hook.install()
    parent.serve({"look": lambda command: asdict(answer(Question(**command["question"])))})


def answer(question: Question) -> Answer:
    """Search for the first wrong operator.

    Raises `NGraphError` if the model cannot be built or has changed, `FailedError` if the compiler fails now, and
    `InseparableError` if only the compiler computes the model.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ngraph-why-") as scratch:
        place = Path(scratch)
        source, batch = _prepared(question, place / "materials")
        kept = _kept(question)
        inputs = kept["input"] if kept else source.example(batch)
        program = _program(question, source, inputs)
        job = Job(question.compiler, question.flags, question.target, question.limit_s)
        with Engines(program, job, place / "engines") as engines:
            found = Answer(nodes=len(program.nodes))
            until, tries = start + question.seconds, 0
            for _ in range(_DOUBTS):
                search = Search(program, engines.run, precision=question.target["precision"], until=until)
                whole = search.whole()
                smallest = search.smallest(whole) if whole is not None else None
                tries += search.tries
                precision = question.target["precision"]
                doubt = program.recheck(smallest.part, smallest.outputs, precision) if smallest is not None else ""
                if not doubt:
                    break
                found.remarks.append(doubt)
        found.tries, found.out_of_time = tries, search.out_of_time
        if whole is None or smallest is None or doubt:
            found.right = _why_right(program, kept, question)
        else:
            _describe(found, program, whole, smallest)
            directory, precision = Path(question.directory), question.target["precision"]
            title = f"{found.operator} is computed wrongly ({found.smallest})"
            reproduction.write(program, smallest, directory, question.compiler, question.flags, precision, title)
            found.directory, found.files = question.directory, sorted(path.name for path in directory.iterdir())
            found.reproduced = reproduction.shows(directory)
    found.seconds = time.monotonic() - start
    return found


def _describe(found: Answer, program: Program, whole: WrongPart, smallest: WrongPart) -> None:
    first = program.nodes[program.producers()[smallest.culprit]]
    found.output, found.wrong = whole.first, whole.wrong[whole.first]
    found.operator, found.node, found.node_output = first.operator, first.name, smallest.culprit
    found.smallest = smallest.how
    found.together = [program.nodes[place].operator for place in smallest.part.nodes]


def _prepared(question: Question, directory: Path) -> tuple[Source, int]:
    """Prepare the model and its exports, without a study's verification runs."""
    from mlflow_ngraph.sample_arrays import save_arrays
    from mlflow_ngraph.workloads import samples
    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.materials import Source, arrays_file
    from mlflow_ngraph.workloads.preparing import Preparation
    from mlflow_ngraph.workloads.registry import create

    workload = create(WorkloadRef(**question.workload), Init(**question.init))
    preparation = Preparation(workload, directory, seed=question.seed)
    materials = preparation.materials
    if question.digest and materials.digest != question.digest:
        raise NGraphError(
            f"{materials.info.label} is not what was measured: its weights, its files or its code have changed since; "
            "measure it again"
        )
    batch = materials.info.fixed_batch or question.batch
    materials.batch_sizes = [batch]
    example = samples.drawn(
        materials.info.inputs, samples.stored_samples(directory), batch, np.random.default_rng([materials.seed, batch])
    )
    save_arrays(directory / arrays_file("inputs", batch), *example)
    if "onnx" in COMPILERS.get(question.compiler).formats:
        preparation.export(["onnx"])
    materials.write(directory)
    return Source(directory), batch


def _program(question: Question, source: Source, inputs: Arrays) -> Program:
    if "onnx" in COMPILERS.get(question.compiler).formats:
        from mlflow_ngraph.workloads.onnx_file import load_whole
        from mlflow_ngraph_bisect.onnx_program import OnnxProgram

        model = load_whole(source.onnx(source.materials.batch_sizes[0]))
        names = [spec.name for spec in source.inputs]
        return OnnxProgram(model, dict(zip(names, inputs, strict=True)), question.compiler)
    from mlflow_ngraph_bisect.torch_program import TorchProgram

    return TorchProgram(source.module(), inputs)


def _kept(question: Question) -> dict[str, Arrays]:
    """Stored inputs on which engine and baseline disagreed, with their outputs; empty without any."""
    if not question.kept:
        return {}
    with np.load(question.kept) as content:
        return {
            kind: [content[f"{kind}_{index}"] for index in range(sum(name.startswith(kind) for name in content.files))]
            for kind in ("input", "engine", "reference")
        }


def _why_right(program: Program, kept: dict[str, Arrays], question: Question) -> str:
    """Reason why a newly compiled engine is right."""
    if not kept:
        return "its outputs are as near to float64 as rounding allows, on the inputs that it was timed on"
    producers = program.producers()
    if not all(name in producers for name in program.outputs) or len(program.outputs) != len(kept["engine"]):
        return "compiled by itself, it is as near to float64 as rounding allows"
    whole = program.part(program.ancestors(program.outputs, range(len(program.nodes))), program.outputs)
    exact, said = program.exact(whole), {}
    for kind in ("engine", "reference"):
        wrong = judge(program, whole, exact, kept[kind], question.target["precision"])
        said[kind] = next(iter(wrong.values()), "")
    if said["engine"]:
        return f"the study's engine is wrong ({said['engine']}), one compiled for these sizes alone is right"
    baseline = f"the baseline is wrong ({said['reference']})" if said["reference"] else "so is the baseline"
    return f"the engine is as near to float64 as rounding allows; {baseline}"
