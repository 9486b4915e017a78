"""Compare an engine with the baseline on trial inputs, and on the timed ones. For child processes only."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import parity
from mlflow_ngraph.errors import IncomparableError, UnsupportedError
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.output_scales import parts
from mlflow_ngraph.workloads.trial_references import Trial
from mlflow_ngraph.workloads.trials import draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.base import Engine
    from mlflow_ngraph.workloads.output_scales import Band

Arrays = Sequence["NDArray[Any]"]

_FEW = 4
"""Elements of a band from which on it is judged without the truth: of one number two draws do not tell what rounding does."""


@dataclass
class Verification:
    """Result of the worker's command ``verify``."""

    parity: Parity = parity.EXACT
    """The worst over all inputs."""
    inputs: int = 0
    """Number of input batches."""
    ill_conditioned: int = 0
    """Batches left out because rounding at this precision changes every output."""
    refused: int = 0
    """Batches that the adapter declined."""
    unchecked: int = 0
    """Batches with unknown rounding: the model raised in double precision."""
    unchecked_why: str = ""
    """The error that it raised."""
    no_numbers: int = 0
    """Batches for which the model gives NaN in every sample, or a number beyond its type: they judge nothing."""
    unjudged: list[int] = field(default_factory=list)
    """Outputs that no input could judge, the timed one included: rounding decides them, or they are no numbers."""
    judged: int = 0
    """Number of outputs that were judged."""
    ties: float = 0.0
    """Largest share of an integer output that differs where rounding alone decides between answers."""
    ties_in: int = 0
    """Index of that output."""
    without_truth: int = 0
    """Batches without double precision: the model's own outputs are the reference."""
    too_slow: bool = False
    """One call would have exceeded the time."""
    slowdown: float = 0.0
    """Call time relative to the baseline; 0 without calls."""
    roundings: float = 0.0
    """Largest relative error in units of the baseline's rounding error; 0 when unknown."""
    seconds: float = 0.0
    problem: str = ""
    """Reason why the engine is wrong; empty when it is not."""
    vacuous: bool = False
    """The outputs vary with the inputs by less than the precision's tolerance: any would have passed."""
    kept: str = ""
    """File with the inputs of the disagreement, relative to its directory."""

    def note_judged(self, judged: set[int], outputs: int) -> None:
        """Count the outputs that some input has judged."""
        self.unjudged, self.judged = sorted(set(range(outputs)) - judged), len(judged)


def verify(
    engine: Engine, source: Source, batch: int, precision: str, slowdown: float, limit_s: float, keep: Path
) -> Verification:
    """Compare an engine with the baseline on trials, until one disagrees, all agree, or time is up.

    ``slowdown`` is the expected call time relative to the baseline. Nothing is tried when one call would exceed the
    time: the timed inputs are compared regardless. No trial begins after ``limit_s`` seconds. The inputs and outputs of
    a disagreement go into the file ``keep``.
    """
    start = time.perf_counter()
    known, example = source.trials(batch), source.example(batch)
    verification = Verification(vacuous=_is_vacuous(known.variation, precision))
    timed = source.reference(batch)
    judged = _judged(known.example, timed, precision)
    verification.note_judged(judged, len(timed))
    if math.isinf(slowdown) or known.call_s * slowdown > limit_s:
        verification.too_slow = True
        return verification
    telling = [
        (trial, outputs, exact)
        for trial, outputs, exact in zip(known.trials, known.outputs, known.exact, strict=True)
        if _judged(trial, outputs, precision)
    ]
    undefined = [trial for trial in known.trials if not trial.unchecked and not any(trial.rounding)]
    verification.no_numbers = len(undefined)
    verification.ill_conditioned = len(known.trials) - len(telling) - len(undefined)
    judge = Judge(verification, engine, precision, keep, known.bands)
    again: tuple[Trial, Arrays, Arrays, Arrays | None] | None = None
    for trial, reference, exact in telling:
        _, inputs = draw(source.inputs, batch, known.seed, trial.number, example, given=known.given)
        agrees = judge.agrees(f"on inputs of the kind {trial.kind!r}", trial, inputs, reference, exact)
        if agrees is None:
            verification.refused += 1
            continue
        judged |= _judged(trial, reference, precision)
        again = again or (trial, inputs, reference, exact)
        if not agrees or _over(start, verification.inputs, limit_s):
            break
    else:
        if again is not None:
            judge.agrees("called again after other inputs", *again)
    verification.note_judged(judged, len(timed))
    if verification.inputs and known.call_s > 0:
        verification.slowdown = judge.call_s / known.call_s
    verification.seconds = time.perf_counter() - start
    return verification


class Judge:
    """Compares an engine with the baseline and with double precision, and notes the distance.

    The inputs and outputs of a disagreement go into the file ``keep``. ``bands`` are elements of each output that are
    smaller than the others.
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

    def agrees(self, when: str, trial: Trial, inputs: Arrays, reference: Arrays, exact: Arrays | None) -> bool | None:
        """Run the engine once; None when the adapter declines."""
        try:
            invocation = self._engine.bind(inputs)
        except UnsupportedError:
            return None
        start = time.perf_counter()
        invocation.call()
        self.call_s = min(self.call_s, time.perf_counter() - start)
        self._found.inputs += 1
        self._found.without_truth += exact is None
        if trial.unchecked:
            self._found.unchecked += 1
            self._found.unchecked_why = trial.unchecked
        for request in invocation.singly or (invocation,):
            outputs = request.outputs()
            problem = self.problem(trial, outputs, reference, exact)
            if problem is not None:
                self._save(inputs, outputs, reference)
                self._found.problem, self._found.kept = f"{when}: {problem}", self._keep.name
                return False
        return True

    def problem(self, trial: Trial, outputs: Arrays, reference: Arrays, exact: Arrays | None) -> str | None:
        """Explain why outputs are wrong; None when nothing is."""
        truth = [None] * len(reference) if exact is None else exact
        try:
            parity.require_form(outputs, reference)
            problems = [
                self._of_output(trial, index, outputs[index], reference[index], truth[index])
                for index in range(len(reference))
            ]
        except IncomparableError as error:
            return str(error)
        named = [
            f"output {index}: {problem}" if len(problems) > 1 else problem
            for index, problem in enumerate(problems)
            if problem
        ]
        return named[0] if named else None

    def _of_output(
        self, trial: Trial, index: int, ours: NDArray[Any], native: NDArray[Any], truth: NDArray[Any] | None
    ) -> str | None:
        """Explain why one output is wrong; None also when rounding alone decides it."""
        if trial.unchecked:
            near = parity.compare([ours], [native])
            self._found.parity = parity.worse(self._found.parity, near)
            problem = parity.problem(near, self._precision)
            if problem is None or truth is None:
                return problem
            # When double precision gives other outputs, either may be right.
            return parity.problem(parity.compare([ours], [truth.astype(native.dtype)]), self._precision)
        allowed = trial.rounding[index]
        judgement = parity.judge(ours, native, truth, allowed, self._precision)
        if judgement is None:
            return None
        assert allowed is not None
        self._found.roundings = max(self._found.roundings, judgement.error.largest / allowed.largest)
        if judgement.error.integers > self._found.ties:
            self._found.ties, self._found.ties_in = judgement.error.integers, index
        self._found.parity = parity.worse(self._found.parity, judgement.near)
        if judgement.problem or self._precision != "fp32":
            return judgement.problem or None
        return self._of_small(trial, index, ours, native, truth)

    def _of_small(
        self, trial: Trial, index: int, ours: NDArray[Any], native: NDArray[Any], truth: NDArray[Any] | None
    ) -> str | None:
        """Explain why the elements that are always smaller than the others are wrong."""
        if not trial.small[index]:
            return None
        band = self._bands[index]
        # The effect of rounding on some bands is unknown.
        meant = native if truth is None else truth
        bands = (parts(ours, band), parts(meant, band), parts(native, band), trial.small[index])
        for small, wanted, own, allowed in zip(*bands, strict=False):
            if allowed is None or not allowed.tells or not wanted.any():
                continue  # nothing is relative to zeros: the output as a whole judges them
            if truth is None and small.shape[1] < _FEW:
                continue
            problem = parity.beyond(parity.errors(small, wanted, own), allowed, truth=truth is not None)
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


def check_timed_inputs(
    found: Parity, source: Source, batch: int, precision: str, outputs: Arrays, reference: Arrays
) -> str:
    """Explain why an engine of this distance from the baseline is wrong on the timed inputs; empty when it is not."""
    known = source.trials(batch, facts_only=True)
    if known.example is None:
        return parity.problem(found, precision) or ""
    judge = Judge(Verification(), None, precision, Path(), known.bands)  # type: ignore[arg-type] # it has run
    return judge.problem(known.example, outputs, reference, source.exact(batch)) or ""


def _judged(trial: Trial | None, outputs: Arrays, precision: str) -> set[int]:
    """Outputs that a trial can judge; all of them, by the fixed tolerance, when rounding is unknown."""
    if trial is None or trial.unchecked:
        return set(range(len(outputs)))
    telling = map(parity.tells, trial.rounding, outputs, repeat(precision))
    return {index for index, tells in enumerate(telling) if tells}


def _is_vacuous(variation: Parity | None, precision: str) -> bool:
    return variation is not None and parity.problem(variation, precision) is None


def _over(start: float, taken: int, limit_s: float) -> bool:
    """Return True when another trial of the average length would exceed the limit."""
    spent = time.perf_counter() - start
    return spent + spent / taken > limit_s
