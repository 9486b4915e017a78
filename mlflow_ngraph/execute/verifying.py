"""An engine on inputs other than those it will be timed on: does it compute the model's function? For child processes only."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import parity
from mlflow_ngraph.errors import IncomparableError, UnsupportedError
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.workloads.bands import parts
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.trial_references import Trial, save_arrays
from mlflow_ngraph.workloads.trials import draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.base import Engine
    from mlflow_ngraph.workloads.bands import Band

Arrays = Sequence["NDArray[Any]"]


@dataclass
class Verification:
    """What came of it; the result of the worker's command ``verify``."""

    parity: Parity = parity.EXACT
    """The worst over all inputs that were tried."""
    inputs: int = 0
    """Batches of inputs that were tried."""
    ill_conditioned: int = 0
    """Batches that were left out, because at this precision rounding alone changes every output."""
    refused: int = 0
    """Batches that the adapter said it does not take."""
    too_slow: bool = False
    """Whether one call would have taken longer than there was time."""
    slowdown: float = 0.0
    """How many times as long as the baseline a call took; 0 where none was made."""
    roundings: float = 0.0
    """Largest relative error in units of the baseline's own rounding error; 0 where that is not known."""
    seconds: float = 0.0
    problem: str = ""
    """Why the engine does not compute the model's function; empty where nothing speaks against it."""
    vacuous: bool = False
    """Whether the outputs do not depend on the inputs by more than the precision's tolerance: any would have passed."""
    kept: str = ""
    """The file with the inputs that made engine and baseline disagree, relative to where it was to be kept."""

    def as_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return asdict(self)


def verify(
    engine: Engine, source: Source, batch: int, precision: str, slowdown: float, limit_s: float, keep: Path
) -> Verification:
    """Compare an engine with the baseline on trials, until one disagrees, all agree, or the time is over.

    Parameters
    ----------
    slowdown : float
        How many times as long as the baseline the engine probably takes. Where one call would take longer than there is
        time, nothing is tried: the inputs that it is timed on are compared anyway.
    limit_s : float
        Seconds from which on no further trial is begun.
    keep : Path
        Where inputs and outputs are written that disagree.
    """
    start = time.perf_counter()
    known, example = source.trials(batch), source.example(batch)
    verification = Verification(vacuous=_is_vacuous(known.variation, precision))
    if math.isinf(slowdown) or known.call_s * slowdown > limit_s:
        verification.too_slow = True
        return verification
    telling = [
        (trial, outputs)
        for trial, outputs in zip(known.trials, known.outputs, strict=True)
        if any(parity.tells(grown, precision) for grown in trial.amplification)
    ]
    verification.ill_conditioned = len(known.trials) - len(telling)
    judge = _Judge(verification, engine, precision, keep, known.bands)
    again: tuple[Trial, Arrays, Arrays] | None = None
    for trial, reference in telling:
        _, inputs = draw(source.inputs, batch, known.seed, trial.number, example, given=known.given)
        agrees = judge.agrees(f"on inputs of the kind {trial.kind!r}", trial, inputs, reference)
        if agrees is None:
            verification.refused += 1
            continue
        again = again or (trial, inputs, reference)
        if not agrees or _over(start, verification.inputs, limit_s):
            break
    else:
        if again is not None:
            judge.agrees("called again after other inputs", *again)
    if verification.inputs and known.call_s > 0:
        verification.slowdown = judge.call_s / known.call_s
    verification.seconds = time.perf_counter() - start
    return verification


class _Judge:
    """Compares an engine with the baseline, and notes how near it came.

    Parameters
    ----------
    keep : Path
        Where inputs and outputs are written that disagree.
    bands : Sequence[Band | None]
        Of each output, which of its elements are smaller than the others.
    """

    def __init__(
        self, found: Verification, engine: Engine, precision: str, keep: Path, bands: Sequence[Band | None]
    ) -> None:
        self._found = found
        self._engine = engine
        self._precision = precision
        self._keep = keep
        self._bands = bands
        self.call_s = math.inf
        """The fastest call."""

    def agrees(self, when: str, trial: Trial, inputs: Arrays, reference: Arrays) -> bool | None:
        """Run the engine once; None where the adapter declines."""
        try:
            invocation = self._engine.bind(inputs)
        except UnsupportedError:
            return None
        start = time.perf_counter()
        invocation.call()
        self.call_s = min(self.call_s, time.perf_counter() - start)
        self._found.inputs += 1
        for request in invocation.singly or (invocation,):
            outputs = request.outputs()
            problem = self._problem(trial, outputs, reference)
            if problem is not None:
                self._save(inputs, outputs, reference)
                self._found.problem, self._found.kept = f"{when}: {problem}", self._keep.name
                return False
        return True

    def _problem(self, trial: Trial, outputs: Arrays, reference: Arrays) -> str | None:
        try:
            if len(outputs) != len(reference):
                parity.compare(outputs, reference)  # says how many there are
            problems = [self._of_output(trial, index, outputs, reference) for index in range(len(reference))]
        except IncomparableError as error:
            return str(error)
        named = [
            f"output {index}: {problem}" if len(problems) > 1 else problem
            for index, problem in enumerate(problems)
            if problem
        ]
        return named[0] if named else None

    def _of_output(self, trial: Trial, index: int, outputs: Arrays, reference: Arrays) -> str | None:
        """Why one output is wrong; None also where rounding alone decides what it is."""
        if not parity.tells(trial.amplification[index], self._precision):
            return None
        near = parity.compare([outputs[index]], [reference[index]])
        self._found.parity = parity.worse(self._found.parity, near)
        problem, rounding = parity.problem(near, self._precision), trial.rounding[index]
        if problem is None and rounding is not None and self._precision == "fp32":
            problem = self._unexplained(near, rounding) or self._of_small(
                trial, index, outputs[index], reference[index]
            )
        return problem

    def _unexplained(self, near: Parity, rounding: float) -> str | None:
        self._found.roundings = max(self._found.roundings, near.max_rel / rounding)
        return parity.unexplained(near, rounding)

    def _of_small(self, trial: Trial, index: int, ours: NDArray[Any], theirs: NDArray[Any]) -> str | None:
        """Why the elements of an output are wrong that are always smaller than its others."""
        if not trial.small[index]:
            return None
        band = self._bands[index]
        # Of some the baseline's own error is not known.
        for small, wanted, rounding in zip(parts(ours, band), parts(theirs, band), trial.small[index], strict=False):
            if rounding is None:
                continue
            problem = self._unexplained(parity.compare([small], [wanted]), rounding)
            if problem:
                return f"in {small.shape[1]} elements that are smaller than the others: {problem}"
        return None

    def _save(self, inputs: Arrays, outputs: Arrays, reference: Arrays) -> None:
        named = {
            f"{kind}_{index}": array
            for kind, arrays in (("input", inputs), ("engine", outputs), ("reference", reference))
            for index, array in enumerate(arrays)
        }
        self._keep.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(self._keep, **named)


def _is_vacuous(variation: Parity | None, precision: str) -> bool:
    return variation is not None and parity.problem(variation, precision) is None


def _over(start: float, taken: int, limit_s: float) -> bool:
    """Whether another trial, as long as those before, would take more time than there is."""
    spent = time.perf_counter() - start
    return spent + spent / taken > limit_s
