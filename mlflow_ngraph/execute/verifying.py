"""An engine on inputs other than those it will be timed on: does it compute the model's function? For child processes only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.measure import parity
from mlflow_ngraph.measure.parity import Parity
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.trial_references import save_arrays
from mlflow_ngraph.workloads.trials import draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.base import Engine

Arrays = Sequence["NDArray[Any]"]


@dataclass
class Verification:
    """What came of it; the result of the worker's command ``verify``."""

    parity: Parity = parity.EXACT
    """The worst over all inputs that were tried."""
    inputs: int = 0
    """Batches of inputs that were tried."""
    ill_conditioned: int = 0
    """Batches that were left out, because at this precision rounding alone changes the answer."""
    refused: int = 0
    """Batches that the adapter said it does not take."""
    too_slow: bool = False
    """Whether one call would have taken longer than there was time."""
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
    slowdown: how many times as long as the baseline the engine probably takes. Where one call would take longer than
        there is time, nothing is tried: the inputs that it is timed on are compared anyway.
    limit_s: seconds from which on no further trial is begun.
    keep: where inputs and outputs are written that disagree.
    """
    start = time.perf_counter()
    known, example = source.trials(batch), source.example(batch)
    found = Verification(vacuous=_is_vacuous(known.variation, precision))
    if known.call_s * slowdown > limit_s:
        found.too_slow = True
        return found
    telling = [
        (trial, outputs)
        for trial, outputs in zip(known.trials, known.outputs, strict=True)
        if parity.tells(trial.amplification, precision)
    ]
    found.ill_conditioned = len(known.trials) - len(telling)
    again: tuple[Arrays, Arrays] | None = None
    for trial, reference in telling:
        _, inputs = draw(source.inputs, batch, known.seed, trial.number, example, given=known.given)
        agrees = _try(found, engine, f"on inputs of the kind {trial.kind!r}", inputs, reference, precision, keep)
        if agrees is None:
            found.refused += 1
            continue
        again = again or (inputs, reference)
        if not agrees or _over(start, found.inputs, limit_s):
            break
    else:
        if again is not None:
            _try(found, engine, "called again after other inputs", *again, precision, keep)
    found.seconds = time.perf_counter() - start
    return found


def _try(
    found: Verification,
    engine: Engine,
    when: str,
    inputs: Arrays,
    reference: Arrays,
    precision: str,
    keep: Path,
) -> bool | None:
    """Run the engine once, and note how near it came; False where it disagrees, None where the adapter declines."""
    try:
        invocation = engine.bind(inputs)
    except UnsupportedError:
        return None
    invocation.call()
    requests = invocation.singly or (invocation,)
    found.inputs += 1
    for request in requests:
        outputs = request.outputs()
        try:
            near = parity.compare(outputs, reference)
            problem = parity.problem(near, precision)
        except ValueError as error:
            near, problem = found.parity, str(error)
        found.parity = parity.worse(found.parity, near)
        if problem is not None:
            named = {
                f"{kind}_{index}": array
                for kind, arrays in (("input", inputs), ("engine", outputs), ("reference", reference))
                for index, array in enumerate(arrays)
            }
            keep.parent.mkdir(parents=True, exist_ok=True)
            save_arrays(keep, **named)
            found.problem, found.kept = f"{when}: {problem}", keep.name
            return False
    return True


def _is_vacuous(variation: Parity | None, precision: str) -> bool:
    return variation is not None and parity.problem(variation, precision) is None


def _over(start: float, taken: int, limit_s: float) -> bool:
    """Whether another trial, as long as those before, would take more time than there is."""
    spent = time.perf_counter() - start
    return spent + spent / taken > limit_s
