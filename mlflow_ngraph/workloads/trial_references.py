"""What the baseline makes of the trials, and how far rounding alone would change it. For child processes only."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph import parity
from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.parity import Parity
from mlflow_ngraph.workloads.bands import bands, parts
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.baseline import DISTURBANCE, Baseline
from mlflow_ngraph.workloads.trials import KINDS, draw, is_extreme

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.bands import Band

Arrays = Sequence["NDArray[Any]"]

CHAOTIC = 1e12
"""An amplification at which no answer can be told from another."""
FEWEST, MOST = 4, 4 * len(KINDS)
SECONDS = 4.0
"""What the baseline may take for the trials of a batch size, beyond the first few."""
_BYTES = 256 * 2**20
"""What the outputs of the trials of a batch size may take on disk."""


@dataclass(frozen=True)
class Trial:
    """One batch of inputs with the baseline's outputs in the file of references."""

    number: int
    kind: str
    amplification: tuple[float, ...]
    """Of each output: its relative change over the relative change of inputs and weights that caused it. 0 where nothing is
    rounded, `CHAOTIC` where an integer changed or a number ceased to be one."""
    rounding: tuple[float | None, ...]
    """Of each output: the relative error that the baseline itself has in fp32, at least what a rounding of every input and
    weight would make; None where that cannot be found out."""
    small: tuple[tuple[float | None, ...], ...] = ()
    """The same of each output's bands of smaller elements (`mlflow_ngraph.workloads.bands.parts`), relative to the largest element
    of the band, and at least the median over all trials: a few elements may have hardly any error by chance. None where
    rounding alone decides what they are, too."""


@dataclass
class Trials:
    """The trials of one batch size, and what tells whether they verify anything."""

    seed: int
    given: bool = False
    """Whether they are made of samples that the user gave."""
    variation: Parity | None = None
    """How far the baseline's outputs are from those for the example, at most; None: further than can be said, because even
    shapes differ."""
    call_s: float = 0.0
    """Median seconds in which the baseline ran one."""
    trials: list[Trial] = field(default_factory=list)
    outputs: list[Arrays] = field(default_factory=list)
    """The baseline's, of each trial."""
    bands: list[Band | None] = field(default_factory=list)
    """Of each output, which of its elements are smaller than the others."""

    def write(self, facts: Path, arrays: Path) -> None:
        """Write both files; the one with the facts last, so that whoever sees it sees all."""
        named = {
            f"{place}.{index}": array for place, part in enumerate(self.outputs) for index, array in enumerate(part)
        }
        save_arrays(arrays, **named)
        variation = asdict(self.variation) if self.variation is not None else None
        content = {
            "seed": self.seed,
            "given": self.given,
            "variation": variation,
            "call_s": self.call_s,
            "trials": [asdict(trial) for trial in self.trials],
            "bands": [None if band is None else band.tolist() for band in self.bands],
        }
        temporary = facts.with_name(f"partial-{facts.name}")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(facts)

    @classmethod
    def read(cls, facts: Path, arrays: Path) -> Trials:
        """The inverse of `write`."""
        content = json.loads(facts.read_text(encoding="utf-8"))
        trials = [
            Trial(
                trial["number"],
                trial["kind"],
                tuple(trial["amplification"]),
                tuple(trial["rounding"]),
                tuple(map(tuple, trial["small"])),
            )
            for trial in content["trials"]
        ]
        variation = Parity(**content["variation"]) if content["variation"] is not None else None
        with np.load(arrays) as saved:
            count = len({name.partition(".")[2] for name in saved.files})
            outputs: list[Arrays] = [
                [saved[f"{place}.{index}"] for index in range(count)] for place in range(len(trials))
            ]
        found = [None if band is None else np.array(band, np.int8) for band in content["bands"]]
        return cls(content["seed"], content["given"], variation, content["call_s"], trials, outputs, found)


def collect(
    baseline: Baseline,
    inputs: Sequence[TensorSpec],
    batch: int,
    seed: int,
    example: Arrays,
    reference: Arrays,
    *,
    given: bool = False,
) -> Trials:
    """Run the baseline on as many trials as time and space allow.

    What the model does not accept, or makes no numbers of although nobody would give it such inputs, is no trial.

    Parameters
    ----------
    example, reference : Arrays
        The seeded example, and the baseline's outputs for it.
    given : bool
        Whether the example is the user's.
    """
    trials = Trials(seed, given, parity.compare(reference, reference))
    trials.bands = _bands(baseline, inputs, batch, seed, example, reference, given=given)
    calls: list[float] = []
    start, size = time.perf_counter(), max(1, sum(array.nbytes for array in reference))
    most = max(FEWEST, min(MOST, _BYTES // size))
    for number in range(MOST):
        taken = len(trials.trials)
        if taken >= most or (taken >= FEWEST and time.perf_counter() - start > SECONDS):
            break
        kind, drawn = draw(inputs, batch, seed, number, example, given=given)
        began = time.perf_counter()
        outputs = _accepted(baseline.run, drawn)
        spent = time.perf_counter() - began
        if outputs is None:
            continue
        if is_extreme(kind) and not all(map(_finite, outputs)):
            continue
        calls.append(spent)
        moved, exact = disturbed_outputs(baseline.disturbed, drawn, number), baseline.exact(drawn)
        grown = amplification(moved, outputs)
        small = _small(trials.bands, outputs, moved, exact)
        trials.trials.append(Trial(number, kind, grown, _rounding(exact, outputs, grown), small))
        trials.outputs.append(outputs)
        trials.variation = _further(trials.variation, outputs, reference)
    trials.call_s = statistics.median(calls) if calls else 0.0
    trials.trials = _at_least_typical(trials.trials)
    return trials


def _bands(
    baseline: Baseline,
    inputs: Sequence[TensorSpec],
    batch: int,
    seed: int,
    example: Arrays,
    reference: Arrays,
    *,
    given: bool,
) -> list[Band | None]:
    """From inputs of each kind that a model is used with."""
    usual = [number for number, kind in enumerate(KINDS) if not is_extreme(kind)]
    tried = [_accepted(baseline.run, draw(inputs, batch, seed, number, example, given=given)[1]) for number in usual]
    runs = [reference, *(outputs for outputs in tried if outputs is not None)]
    return bands(runs) if len({len(outputs) for outputs in runs}) == 1 else [None] * len(reference)


def _accepted(run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays | None:
    """The baseline's outputs; None where the model refuses what it is not made for. The example it has run on."""
    try:
        return run(inputs)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a model raises anything
        return None


def _small(
    found: Sequence[Band | None], outputs: Arrays, moved: Arrays, exact: Arrays | None
) -> tuple[tuple[float | None, ...], ...]:
    """As `Trial.small`, of this trial alone."""
    if exact is None or not len(exact) == len(moved) == len(outputs) == len(found):
        return ((),) * len(outputs)
    return tuple(
        tuple(map(_band_error, *(parts(arrays[index], band) for arrays in (outputs, exact, moved))))
        for index, band in enumerate(found)
    )


def _band_error(ours: NDArray[Any], exact: NDArray[Any], moved: NDArray[Any]) -> float | None:
    grown = _grown(moved, ours)
    return _own_error(ours, exact, grown) if parity.tells(grown, "fp32") else None


def _at_least_typical(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with errors of bands that are no smaller than the median of that band."""
    known: dict[tuple[int, int], list[float]] = defaultdict(list)
    for trial in trials:
        for index, errors in enumerate(trial.small):
            for place, error in enumerate(errors):
                if error is not None:
                    known[index, place].append(error)
    typical = {key: statistics.median(errors) for key, errors in known.items()}
    return [
        replace(
            trial,
            small=tuple(
                tuple(
                    None if error is None else max(error, typical[index, place]) for place, error in enumerate(errors)
                )
                for index, errors in enumerate(trial.small)
            ),
        )
        for trial in trials
    ]


def _rounding(exact: Arrays | None, outputs: Arrays, grown: Sequence[float]) -> tuple[float | None, ...]:
    if exact is None or len(exact) != len(outputs):
        return (None,) * len(outputs)
    return tuple(map(_own_error, outputs, exact, grown))


def _own_error(ours: NDArray[Any], exact: NDArray[Any], grown: float) -> float | None:
    try:
        own = parity.compare([ours], [exact]).max_rel
    except IncomparableError:
        return None
    return max(own, max(1.0, grown) * parity.UNIT_ROUNDOFF["fp32"]) if np.isfinite(own) else None


def _further(so_far: Parity | None, outputs: Arrays, reference: Arrays) -> Parity | None:
    try:
        return None if so_far is None else parity.worse(so_far, parity.compare(outputs, reference))
    except IncomparableError:
        return None


_WIDE = 4
"""Bytes from which on an integer at the end of its range is no ordinary answer."""
_AT_ZERO = 1e-2
"""How much zeros are disturbed, as a share of the mean size of their tensor."""


def disturbed_outputs(disturbed: Callable[[Arrays], Arrays], inputs: Arrays, seed: int = 0) -> Arrays:
    """What a model gives for inputs that are changed by a millionth; nothing where it refuses them without a change, too.

    Parameters
    ----------
    disturbed : Callable[[Arrays], Arrays]
        Runs the model, with weights that are changed by as much.
    seed : int
        Draws the disturbance.
    """
    rng = np.random.default_rng([seed, 1])
    # An input may have to be a whole number, or at most 1: then the weights alone are changed.
    for given in ([np.asarray(_disturb(array, rng)) for array in inputs], inputs):
        outputs = _accepted(disturbed, given)
        if outputs is not None:
            return outputs
    return ()


def amplification(moved: Arrays, outputs: Arrays) -> tuple[float, ...]:
    """As `Trial.amplification`, from outputs with and without a disturbance."""
    if len(moved) != len(outputs):
        return (CHAOTIC,) * len(outputs)
    return tuple(map(_grown, moved, outputs))


def _grown(moved: NDArray[Any], output: NDArray[Any]) -> float:
    if output.dtype.kind == "i" and output.dtype.itemsize >= _WIDE and _overflows(output):
        return CHAOTIC
    try:
        difference = parity.compare([moved], [output])
    except IncomparableError:  # another number of rows: what is selected hangs on a rounding error
        return CHAOTIC
    if difference.integers != 1.0 or not np.isfinite(difference.max_rel):
        return CHAOTIC
    return min(CHAOTIC, difference.max_rel / DISTURBANCE)


def _overflows(output: NDArray[Any]) -> bool:
    """Whether integers are at the ends of their range: what a number too large becomes there is left to each compiler."""
    ends = np.iinfo(output.dtype)
    return bool(((output == ends.min) | (output == ends.max)).any())


def _disturb(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if array.dtype.kind not in "fc":
        return array
    # Zeros too: what divides by the spread of its input rounds there as well, and divides by nothing but rounding where
    # everything is zero.
    mean = np.abs(array).mean() if array.size else 0.0
    size = np.abs(array) + (_AT_ZERO * mean if mean > 0 else 1.0)
    moved: NDArray[Any] = (array + DISTURBANCE * size * rng.uniform(-1, 1, array.shape)).astype(array.dtype)
    return moved


def save_arrays(path: Path, *arrays: NDArray[Any], **named: NDArray[Any]) -> None:
    """Write a file of arrays whole or not at all."""
    temporary = path.with_name(f"partial-{path.name}")  # NumPy insists on the suffix
    np.savez(temporary, *arrays, **named)  # type: ignore[arg-type]
    temporary.replace(path)


def _finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
