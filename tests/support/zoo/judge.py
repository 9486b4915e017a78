"""Whether the verdicts of a study are right: engines are tried on revealing inputs, whatever the study says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.study import Study, parse
from mlflow_ngraph_testing.steps import within
from tests.support.zoo.catalogue import specimens
from tests.support.zoo.specimen import KINDS, Array, Arrays, Specimen

Judgement = Literal["right", "false ok", "refused", "odd"]

LEFT_TO_RUN = ("ok",)
"""Verdicts that say that the engine computes the model's function."""
OF_COMPILERS = ("unsupported", "oom", "timeout")
"""Verdicts that say of no engine that it is wrong."""
CLOSE = 1e-3
"""Allowed error relative to the largest number of a sample's output: far above rounding, far below another branch."""
_SECONDS = 900.0


@dataclass(frozen=True)
class Engine:
    """An engine of a study at one batch size."""

    specimen: str
    compiler: str
    batch: int
    directory: str


@dataclass(frozen=True)
class Cell:
    """A cell of a study, and what is to be said of its verdict."""

    specimen: str
    compiler: str
    batch: int
    verdict: str
    reason: str
    difference: str | None
    """How the engine differs from eager execution; empty where it does not, None where there is no engine."""
    judgement: Judgement

    def __str__(self) -> str:
        difference = "no engine" if self.difference is None else self.difference or "equals eager execution"
        return f"{self.specimen}/{self.compiler}/b{self.batch}: {self.verdict} ({self.reason or '-'}); {difference}"


def study(chosen: Iterable[Specimen], compilers: Sequence[str], batch_sizes: Sequence[int], name: str) -> Study:
    """A study in which everything is as short as it can be but the verification."""
    return parse(
        {
            "name": name,
            "workloads": [{"ref": f"torch:{one.target}", "options": {"inputs": one.inputs}} for one in chosen],
            "compilers": list(compilers),
            "batch_sizes": list(batch_sizes),
            "repetitions": 1,
            "slice_repetitions": 1,
            "warmup": {"window": 2, "max_seconds": 0.01},
            "stability": {"max_foreign_cpu_percent": 100, "max_spread": 1e9, "max_drift": 1e9},
            "limits": {"compile_seconds": 600, "load_seconds": 300, "reload_seconds": 0},
            "cache": "off",
        }
    )


def judged(record: StudyRecord, directory: Path, compilers: Iterable[str]) -> list[Cell]:
    """Judge every cell of a study; what was judged before is read back.

    Parameters
    ----------
    directory: of the study.
    compilers: whose cells count.
    """
    kept = directory / "judged.json"
    if kept.is_file():
        return [Cell(**fields) for fields in json.loads(kept.read_text())]
    cells, known = [], specimens()
    for compiler in compilers:
        differences = _compared(list(_engines(record, directory, compiler)))
        for lane in record.lanes.values():
            if lane.lane.compiler != compiler:
                continue
            for batch, cell in sorted(lane.cells.items()):
                difference = differences.get((lane.lane.label, batch))
                judgement = _judge(known[lane.lane.label], compiler, cell.verdict.value, cell.reason, difference)
                cells.append(
                    Cell(lane.lane.label, compiler, batch, cell.verdict.value, cell.reason, difference, judgement)
                )
    kept.write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    return cells


def _judge(one: Specimen, compiler: str, verdict: str, reason: str, difference: str | None) -> Judgement:
    allowed = one.verdicts[KINDS[compiler]]
    if verdict in LEFT_TO_RUN:
        wrong = difference != "" if one.verifiable else "ok" not in allowed
        return "false ok" if wrong else "right"
    if verdict in allowed or (verdict not in OF_COMPILERS and difference):
        return "right"
    own = verdict in OF_COMPILERS or reason.startswith(f"{compiler}:")
    return "refused" if one.verifiable and not own else "odd"


def _engines(record: StudyRecord, directory: Path, compiler: str) -> Iterator[Engine]:
    for lane in record.lanes.values():
        if lane.lane.compiler == compiler and specimens()[lane.lane.label].verifiable:
            for engine in lane.engines:
                for batch in engine.batch_sizes:
                    yield Engine(lane.lane.label, compiler, batch, str(directory / engine.directory))


def _compared(engines: list[Engine]) -> dict[tuple[str, int], str]:
    """How engines of one compiler differ from eager execution. One that ends its process is judged alone."""
    try:
        return within(_SECONDS, compare, engines) if engines else {}
    except BrokenProcessPool:
        if len(engines) == 1:
            return {(engines[0].specimen, engines[0].batch): "the process died"}
        half = len(engines) // 2
        return {**_compared(engines[:half]), **_compared(engines[half:])}


def compare(engines: Sequence[Engine]) -> dict[tuple[str, int], str]:
    """Run engines on the revealing inputs of their models; for a process of its own."""
    return {(engine.specimen, engine.batch): _difference(engine) for engine in engines}


def _difference(engine: Engine) -> str:
    from mlflow_ngraph.compilers.registry import create as create_compiler
    from mlflow_ngraph.compilers.spec import EngineSpec

    one = specimens()[engine.specimen]
    directory = Path(engine.directory)
    spec = EngineSpec.read(directory)
    for number, inputs in enumerate(one.revealing(_ordinary(one, engine.batch))):
        expected = _eager(one, [array.copy() for array in inputs])
        try:
            loaded = create_compiler(spec.compiler, spec.asked).load(directory, engine.batch, spec.target)
            invocation = loaded.bind(inputs)
            invocation.call()
            found = list(invocation.outputs())
            loaded.close()
        except Exception as error:  # noqa: BLE001 - runtimes raise anything
            return f"inputs {number}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        problem = next(filter(None, map(_unlike, found, expected)), "")
        if len(found) != len(expected) or problem:
            return f"inputs {number}: {problem or f'{len(found)} outputs for {len(expected)}'}"
    return ""


def _ordinary(one: Specimen, batch: int) -> Arrays:
    """Inputs that no study has."""
    rng = np.random.default_rng(20_000)
    return [spec.random(batch, rng) for spec in _workload(one).inputs()]


def _eager(one: Specimen, inputs: Arrays) -> Arrays:
    """What a model says that nobody has called before."""
    import torch

    from mlflow_ngraph.workloads.calling import arrays, tensors

    with torch.no_grad():
        return arrays(_workload(one).module()(*tensors(inputs)))


def _workload(one: Specimen) -> Any:
    from mlflow_ngraph.workloads.base import Init, WorkloadRef
    from mlflow_ngraph.workloads.registry import create

    return create(WorkloadRef("torch", one.target, {"inputs": one.inputs}), Init())


def _unlike(ours: Array, theirs: Array) -> str:
    """How two outputs differ; empty where rounding explains it."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind in "biu":
        return "" if np.array_equal(ours, theirs) else f"{(ours != theirs).mean():.0%} of the integers differ"
    kind = np.complex128 if theirs.dtype.kind == "c" else np.float64
    ours, theirs = (array.astype(kind).reshape(len(array) if array.ndim else 1, -1) for array in (ours, theirs))
    finite = np.isfinite(theirs)
    if not np.array_equal(np.where(finite, 0.0, ours), np.where(finite, 0.0, theirs), equal_nan=True):
        return "other infinities or numbers that are none"
    ours, theirs = np.where(finite, ours, 0.0), np.where(finite, theirs, 0.0)
    scale = np.abs(theirs).max(axis=1, initial=0.0, keepdims=True)
    error = np.abs(ours - theirs) / np.where(scale > 0, scale, 1.0)
    return f"relative error {error.max():.1e}" if (error > CLOSE).any() else ""
