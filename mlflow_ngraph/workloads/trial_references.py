"""Baseline outputs for the trials, and the effect of rounding on them. For child processes only."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mlflow_ngraph import parity
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.parity import Parity, Rounding
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads import samples
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.baseline import Baseline
from mlflow_ngraph.workloads.output_scales import bands, parts
from mlflow_ngraph.workloads.trials import KINDS, draw, is_extreme, own_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.output_scales import Band

Arrays = Sequence["NDArray[Any]"]
T = TypeVar("T")

FEWEST, MOST = 4, 4 * len(KINDS)
_FAR = 64.0
"""Largest error of a model itself as a multiple of the effect of disturbances, which underestimate long sums."""
_DRAWS = 6
"""Draws of disturbances before double precision counts as another function."""
SECONDS = 4.0
"""Time limit of the baseline for the trials of a batch size, beyond the first few."""
_ENOUGH_SAMPLES = 32
"""Samples, the example's among them, from which on the time limit holds: each of a large batch has its own values."""
_BYTES = 256 * 2**20
"""Size limit on disk of the outputs of the trials of a batch size."""


@dataclass(frozen=True)
class Trial:
    """One batch of inputs with the baseline's outputs in the file of references."""

    number: int
    """-1 is the example, which engines are timed on."""
    kind: str
    rounding: tuple[Rounding | None, ...]
    """Effect of rounding on each output, at least that of rounding every number; None if unknown."""
    small: tuple[tuple[Rounding | None, ...], ...] = ()
    """The same of each output's bands of smaller elements (`mlflow_ngraph.workloads.output_scales.parts`), relative to the largest element
    of the band, and at least the median over all trials: a few elements may have hardly any error by chance."""
    unchecked: str = ""
    """Reason why the effect of rounding is unknown: the model's own exception."""

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Trial:
        return cls(
            content["number"],
            content["kind"],
            tuple(map(_rounding_of, content["rounding"])),
            tuple(tuple(map(_rounding_of, band)) for band in content["small"]),
            content["unchecked"],
        )


def _rounding_of(content: dict[str, float] | None) -> Rounding | None:
    return None if content is None else Rounding(**content)


@dataclass
class Trials:
    """Trials of one batch size, and the facts that decide whether they can verify an engine."""

    seed: int
    given: Arrays | None = None
    """The samples of the user that they are made of."""
    variation: Parity | None = None
    """Largest difference of the baseline's outputs from those for the example; None: further than can be said, because even
    shapes differ."""
    call_s: float = 0.0
    """Median seconds in which the baseline ran one."""
    example: Trial | None = None
    """Facts of the inputs that engines are timed on."""
    example_exact: Arrays | None = None
    """The outputs for the example in double precision; `Source.exact` reads them."""
    trials: list[Trial] = field(default_factory=list)
    outputs: list[Arrays] = field(default_factory=list)
    """The baseline's, of each trial."""
    exact: list[Arrays | None] = field(default_factory=list)
    """The same in double precision; None where that cannot be had."""
    bands: list[Band | None] = field(default_factory=list)
    """Bands of small elements, by output."""

    def write(self, facts: Path, arrays: Path) -> None:
        """Write both files, the one with the facts last, so that its presence implies the other."""
        named = {
            f"{kind}.{place}.{index}": array
            for kind, several in (("own", self.outputs), ("exact", self.exact))
            for place, part in enumerate(several)
            for index, array in enumerate(part or ())
        }
        save_arrays(arrays, **named)
        content = {
            "seed": self.seed,
            "given": self.given is not None,
            "variation": asdict(self.variation) if self.variation is not None else None,
            "call_s": self.call_s,
            "example": asdict(self.example) if self.example is not None else None,
            "trials": [asdict(trial) for trial in self.trials],
            "bands": [None if band is None else band.tolist() for band in self.bands],
        }
        temporary = facts.with_name(f"partial-{facts.name}")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(facts)

    @classmethod
    def read(cls, facts: Path, arrays: Path | None) -> Trials:
        """Inverse of `write`; without ``arrays``, which take memory, it has no outputs."""
        content = json.loads(facts.read_text(encoding="utf-8"))
        read = cls(
            content["seed"],
            samples.stored_samples(facts.parent) if content["given"] else None,
            Parity(**content["variation"]) if content["variation"] is not None else None,
            content["call_s"],
            Trial.from_dict(content["example"]) if content["example"] is not None else None,
            trials=[Trial.from_dict(trial) for trial in content["trials"]],
            bands=[None if band is None else np.array(band, np.int8) for band in content["bands"]],
        )
        if arrays is not None:
            with np.load(arrays) as saved:
                places = range(len(read.trials))
                read.outputs = [_numbered(saved, f"own.{place}.") or [] for place in places]
                read.exact = [_numbered(saved, f"exact.{place}.") for place in places]
        return read


def _numbered(saved: Any, prefix: str) -> Arrays | None:
    count = sum(name.startswith(prefix) for name in saved.files)
    return [saved[f"{prefix}{index}"] for index in range(count)] or None


def collect(
    baseline: Baseline,
    inputs: Sequence[TensorSpec],
    batch: int,
    seed: int,
    example: Arrays,
    reference: Arrays,
    *,
    given: Arrays | None = None,
) -> Trials:
    """Run the baseline on as many trials as time and space allow.

    Inputs that the model refuses, and implausible ones that give no numbers, are left out. ``reference`` has the
    outputs for ``example``, whose samples are the first of those ``given`` by the user.
    """
    trials = Trials(seed, given, parity.compare(reference, reference))

    def ran(number: int) -> tuple[str, Arrays, Arrays | None, float]:
        kind, drawn = draw(inputs, batch, seed, number, example, given=given)
        began = time.perf_counter()
        outputs = _accepted(baseline.run, drawn)
        return kind, drawn, outputs, time.perf_counter() - began

    start = time.perf_counter()
    fewest = min(FEWEST, max(1, -(-_ENOUGH_SAMPLES // batch) - 1))
    usual: dict[int, tuple[str, Arrays, Arrays | None, float]] = {}
    for number in _usual(own_batches(inputs, batch, given)):
        if len(usual) < fewest or time.perf_counter() - start <= SECONDS:
            usual[number] = ran(number)
    trials.bands = _bands([reference, *(outputs for _, _, outputs, _ in usual.values() if outputs is not None)])
    trials.example, exact = observed(baseline, -1, "example", example, reference, trials.bands)
    trials.example_exact = exact
    calls: list[float] = []
    most = max(fewest + 1, min(MOST, _BYTES // max(1, 3 * sum(array.nbytes for array in reference))))
    for number in range(MOST):
        taken = len(trials.trials)
        # One more where rounding decides the outputs of one.
        enough = fewest + any(not any(one and one.tells for one in trial.rounding) for trial in trials.trials)
        if taken >= most or (taken >= enough and time.perf_counter() - start > SECONDS):
            break
        kind, drawn, outputs, spent = usual.pop(number) if number in usual else ran(number)
        if outputs is None:
            continue
        if is_extreme(kind) and not all(array.dtype.kind not in "fc" or np.isfinite(array).all() for array in outputs):
            continue
        calls.append(spent)
        trial, exact = observed(baseline, number, kind, drawn, outputs, trials.bands)
        trials.trials.append(trial)
        trials.outputs.append(outputs)
        trials.exact.append(exact)
        trials.variation = _further(trials.variation, *parity.without_fills(outputs, reference, trials.example_exact))
    trials.call_s = statistics.median(calls) if calls else 0.0
    trials.example, *trials.trials = _at_least_typical([trials.example, *trials.trials])
    return trials


def observed(
    baseline: Baseline, number: int, kind: str, inputs: Arrays, outputs: Arrays, found: Sequence[Band | None]
) -> tuple[Trial, Arrays | None]:
    """Effect of rounding on a baseline's outputs for some inputs, and the outputs in double precision, if any."""
    from mlflow_ngraph.workloads.arithmetic import OF_STEPS

    wrong: list[str] = []
    exact = _tried(partial(baseline.exact, inputs), outputs, wrong)
    several = _tried_all(partial(baseline.disturbances, inputs, number + 1), outputs, wrong)
    truth = outputs if exact is None else exact
    # Without a disturbance nobody knows how much an error grows; the error of the model itself is one sample of it. Without
    # the truth it is not known, and lies between an engine and the model beside the engine's own.
    known = [(times / 2, part) for times, part in several] if exact is None else [(1.0, outputs), *several]
    why = "" if several else wrong[-1] if wrong else "nothing came back"
    if several and exact is not None and _is_another_function(exact, outputs, several):
        # One draw may miss what rounding decides, such as the smallest of a few sines of large numbers.
        for seed in range(number + 1 + MOST, number + 1 + _DRAWS * MOST, MOST):
            several += _tried_all(partial(baseline.disturbances, inputs, seed), outputs, wrong)
    if several and exact is not None and _is_another_function(exact, outputs, several):
        why = "operation by operation, or in double precision, it gives other outputs, and rounding does not explain it"
    if why:
        nothing: tuple[Rounding | None, ...] = (None,) * len(outputs)
        return Trial(number, kind, nothing, ((),) * len(outputs), why), exact
    rounding = tuple(
        _rounding(truth[index], output, [(times, part[index]) for times, part in known])
        for index, output in enumerate(outputs)
    )
    # Where a step decides, a small element is off by as much as a large one, and each engine has others that are.
    stepped = [part for times, part in several if times == OF_STEPS]
    found = [
        None if any(_is_off(part[index], output) for part in stepped) else band
        for index, (band, output) in enumerate(zip(found, outputs, strict=True))
    ]
    small = tuple(
        tuple(
            _rounding(one, own, [(times, part) for (times, _), part in zip(known, others, strict=True)])
            for one, own, *others in zip(
                parts(truth[index], band),
                parts(outputs[index], band),
                *(parts(part[index], band) for _, part in known),
                strict=False,
            )
        )
        for index, band in enumerate(found)
    )
    return Trial(number, kind, rounding, small), exact


def _tried(compute: Callable[[], Arrays | None], outputs: Arrays, wrong: list[str]) -> Arrays | None:
    """Outputs in other arithmetic, where they have the model's form; what the model raises is noted."""
    found = _attempt(compute, wrong)
    if found is None or [array.shape for array in found] != [array.shape for array in outputs]:
        return None
    return found


def _tried_all(
    compute: Callable[[], list[tuple[float, Any]]], outputs: Arrays, wrong: list[str]
) -> list[tuple[float, Arrays]]:
    found = _attempt(compute, wrong)
    if found is None:
        return []
    shapes = [array.shape for array in outputs]
    alike = [(times, part) for times, part in found if [array.shape for array in part] == shapes]
    if not alike:
        wrong.append("the shapes of the outputs change with the inputs by a rounding")
    return alike


def _attempt(compute: Callable[[], T], wrong: list[str]) -> T | None:
    """Result of the model's own code; None and a reason if it raises."""
    try:
        return compute()
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model raises anything
        wrong.append(f"it raised {type(error).__name__}: {one_line(error)}")
        return None


def _is_off(moved: NDArray[Any], output: NDArray[Any]) -> bool:
    """True if an output is moved by more than its last digits."""
    own = Rounding(parity.round_off(output), parity.round_off(output))
    return parity.beyond(parity.errors(moved, output, output), own) is not None


def _is_another_function(exact: Arrays, outputs: Arrays, several: Sequence[tuple[float, Arrays]]) -> bool:
    """True if double precision is far off while disturbances are near to it or to the model.

    A buffer or NumPy kept the model's own type, or eager execution takes a fast path that computes something else, such as zeros
    where a transformer's input is padded. Samples that overflow in the model alone tell nothing.
    """
    for index, output in enumerate(outputs):
        judged = parity.judged(exact[index], output)
        # A view where it can be: copies of all outputs take gigabytes.
        told = slice(None) if judged.all() else judged
        own, true, *others = (
            np.atleast_1d(array)[told] for array in (output, exact[index], *(moved[index] for _, moved in several))
        )
        away = parity.errors(true, own, own)
        if away.tells:
            continue
        grown = min(
            max(
                parity.errors(moved, origin, own).largest / times
                for (times, _), moved in zip(several, others, strict=True)
            )
            for origin in (own, true)
        )
        if away.largest > _FAR * max(grown, parity.round_off(output)):
            return True
    return False


def _rounding(
    truth: NDArray[Any], native: NDArray[Any], known: Sequence[tuple[float, NDArray[Any]]]
) -> Rounding | None:
    """Worst observed effect; None where an integer is at the end of its range, or no sample can be judged."""
    if native.dtype.kind == "i" and native.dtype.itemsize >= _WIDE and _overflows(native):
        return None
    if native.size and not parity.judged(truth, native).any():
        return None
    floor = parity.round_off(native)
    worst = Rounding(floor, 0.0)
    for times, moved in known:
        found = parity.errors(moved, truth, native)
        worst = worst.worse(Rounding(found.largest / times, found.typical / times, found.integers))
    return worst


def _usual(own: int) -> list[int]:
    """Numbers of the first plausible trial of each kind; the first ``own`` trials are the user's samples."""
    return [*range(own), *(own + number for number, kind in enumerate(KINDS) if not is_extreme(kind))]


def _bands(outputs: Sequence[Arrays]) -> list[Band | None]:
    """Bands of each output."""
    return bands(outputs) if len({len(one) for one in outputs}) == 1 else [None] * len(outputs[0])


def _accepted(run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays | None:
    """Outputs of the baseline; None where the model refuses implausible inputs. It has run on the example before."""
    try:
        return run(inputs)
    except MemoryError:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - a model raises anything
        return None


def _at_least_typical(trials: Sequence[Trial]) -> list[Trial]:
    """Trials whose errors of bands are raised to the median of that band."""
    known: dict[tuple[int, int], list[Rounding]] = defaultdict(list)
    for trial in trials:
        for index, bands_ in enumerate(trial.small):
            for place, error in enumerate(bands_):
                if error is not None:
                    known[index, place].append(error)
    typical = {
        key: Rounding(
            statistics.median(one.largest for one in errors), statistics.median(one.typical for one in errors)
        )
        for key, errors in known.items()
    }
    return [
        replace(
            trial,
            small=tuple(
                tuple(
                    None if error is None else error.worse(typical[index, place]) for place, error in enumerate(bands_)
                )
                for index, bands_ in enumerate(trial.small)
            ),
        )
        for trial in trials
    ]


def _further(so_far: Parity | None, outputs: Arrays, reference: Arrays) -> Parity | None:
    try:
        return None if so_far is None else parity.worse(so_far, parity.compare(outputs, reference))
    except IncomparableError:
        return None


_WIDE = 4
"""Bytes from which on an integer at the end of its range is no ordinary answer."""


def _overflows(output: NDArray[Any]) -> bool:
    """True if integers are at the ends of their range, where compilers may differ."""
    ends = np.iinfo(output.dtype)
    return bool(((output == ends.min) | (output == ends.max)).any())
