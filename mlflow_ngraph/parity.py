"""Compare outputs of an engine with the baseline's, and judge whether rounding explains the difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.sample_arrays import blocks, flat, rows


@dataclass(frozen=True)
class Parity:
    """Difference of an engine's outputs from those of the baseline in fp32, on the same random inputs."""

    max_abs: float
    max_rel: float
    """Largest absolute error of a sample divided by the largest absolute value of its reference, or by a hundredth of the
    batch's where that is larger."""
    cosine: float
    """Smallest cosine similarity over the samples of the batch."""
    top1: float
    """Share of the samples whose largest output is at the same place."""
    integers: float = 1.0
    """Share of the elements of integer and boolean outputs that are equal; no rounding excuses others."""


EXACT = Parity(0.0, 0.0, 1.0, 1.0)
"""Parity of equal outputs."""


@dataclass(frozen=True)
class Tolerance:
    """Largest difference with which an engine's numbers count."""

    cosine: float
    """Smallest allowed cosine similarity of a sample's outputs."""
    max_rel: float
    """Largest allowed absolute error relative to the largest reference value."""


TOLERANCES = {
    "fp32": Tolerance(cosine=0.99999999, max_rel=1e-4),
    "tf32": Tolerance(cosine=0.99997, max_rel=1e-2),
    "fp16": Tolerance(cosine=0.9999, max_rel=2e-2),
    "bf16": Tolerance(cosine=0.996, max_rel=1e-1),
}
"""By precision. docs/explanation/parity.md derives them from what rounding and what missing parts do to real models: each
lets the rounding of its own precision pass, and that of fp32 catches every coarser one."""


UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Largest relative error of rounding one number, by precision."""
_ACCUMULATED = 4.0
"""Largest error of a correct engine, as a multiple of the amplified rounding error, before inputs are left out as ill-conditioned."""
ROUNDINGS = 8.0
"""Largest error of a correct engine, as a multiple of the effect of rounding on the model: it adds in another order, and may transform
convolutions."""
_FINEST = 5e-6
"""A relative error that is never held against an engine."""
_BLUNT = 0.25
"""Share of the largest output, or of an integer output's elements: where a correct engine may be off by it, rounding alone decides."""
_FILL, _SMALLEST_FILL = 32.0, 1e3
"""Ratio of a number that is put in the place of others, such as -1e9 for a forbidden choice, to all that are computed, and its smallest
size: what saturates, such as a softmax, gives smaller ones."""
_SMALL = 1e-2
"""A sample whose outputs are smaller than this share of the batch's is judged as if they were that large."""
_UNDERFLOWS = {np.dtype(np.float32): 2.0**-126, np.dtype(np.complex64): 2.0**-126}
"""The smallest normal number, by type: many kernels give zero for what is smaller, so a smaller difference is none."""


def compare(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> Parity:
    """Compare all outputs of a batch with the reference, in the order of the model's outputs, batch axis first.

    Raises `IncomparableError` for another number of outputs, shape or element type.
    """
    require_form(outputs, reference)
    worst = EXACT
    for ours, theirs in zip(outputs, reference, strict=True):
        compare_one = _compare_exactly if theirs.dtype.kind in "biu" else _compare_rounded
        worst = worse(worst, compare_one(ours, theirs))
    return worst


def require_form(outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]]) -> None:
    """Check that an engine has as many outputs as the model, of equal shapes and element types.

    Raises
    ------
    IncomparableError
        It has not; the message names the first output that differs.
    """
    if len(outputs) != len(reference):
        raise IncomparableError(f"the engine has {len(outputs)} outputs, the model {len(reference)}")
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        if ours.shape != theirs.shape:
            raise IncomparableError(f"output {index} has shape {ours.shape}, the model's has {theirs.shape}")
        if ours.dtype != theirs.dtype:
            raise IncomparableError(f"output {index} is {ours.dtype}, the model's is {theirs.dtype}")


def problem(parity: Parity, precision: str) -> str | None:
    """Reason why ``parity`` is not good enough for ``precision``, or None."""
    tolerance = TOLERANCES[precision]
    if parity.integers != 1.0:
        return f"{100 * (1 - parity.integers):.3g} % of the integer outputs differ"
    if math.isnan(parity.cosine):
        return "an output is infinite or NaN on one side alone"
    if not parity.cosine >= tolerance.cosine:
        return f"cosine similarity {parity.cosine:.10f} is below {tolerance.cosine} for {precision}"
    if not parity.max_rel <= tolerance.max_rel:
        return f"relative error {parity.max_rel:.1e} is above {tolerance.max_rel:.1e} for {precision}"
    return None


@dataclass(frozen=True)
class Rounding:
    """Effect of rounding on an output, or on a band of its elements, for one batch of inputs."""

    largest: float
    """Largest relative error, as `Parity.max_rel`."""
    typical: float
    """Root of the mean squared relative error."""
    integers: float = 0.0
    """Share of the elements of an integer or boolean output that rounding alone changes."""

    @property
    def tells(self) -> bool:
        """True if an error beyond rounding would show."""
        return bool(ROUNDINGS * self.largest <= _BLUNT and self.integers <= _BLUNT)

    def worse(self, other: Rounding) -> Rounding:
        """Elementwise maximum; a number wins over NaN."""
        return Rounding(
            float(np.fmax(self.largest, other.largest)),
            float(np.fmax(self.typical, other.typical)),
            float(np.fmax(self.integers, other.integers)),
        )


def errors(ours: NDArray[Any], truth: NDArray[Any], native: NDArray[Any]) -> Rounding:
    """Error of one output relative to ``truth``, in the units of `Rounding`; the batch axis is first.

    ``truth`` is the output in double precision, or the model's own where there is none. Samples in which ``native``,
    the model's own output, has no number, or overflows where the truth does not, are left out. Raises
    `IncomparableError` for another shape.
    """
    if not ours.shape == truth.shape == native.shape:
        raise IncomparableError(f"the output has shape {ours.shape}, the model's has {native.shape}")
    if native.dtype.kind in "biu":
        # A label beside a tie is the model's in one arithmetic and another's in the other.
        wrong = np.asarray((ours != native) & (ours != truth))
        return Rounding(0.0, 0.0, float(wrong.mean()) if wrong.size else 0.0)
    judging = judged(truth, native)
    if not truth.size or not judging.any():
        return Rounding(0.0, 0.0)
    samples = partial(_judged_samples, ours, truth, native, judging)
    fill = math.inf if _is_ordinary(truth) else _fill((true, own) for _, true, own in samples())
    largest = [_sizes(true, own, fill).max(axis=1, keepdims=True) for _, true, own in samples()]
    smallest_scale = _SMALL * max(float(sizes.max()) for sizes in largest)
    worst = squares = 0.0
    for sizes, (mine, true, own) in zip(largest, samples(), strict=True):
        difference = np.abs(np.subtract(mine, true, dtype=np.float64))
        if not np.isfinite(difference).all():
            return Rounding(float("inf"), float("inf"))
        difference[difference < _UNDERFLOWS.get(native.dtype, 0.0)] = 0.0
        scales = np.maximum(sizes.astype(np.float64), smallest_scale)
        if fill < math.inf:
            scales = np.where(_are_fills(true, own, fill), np.abs(true), scales)
        if scales.all():
            relative = difference / scales
        else:
            relative = np.divide(difference, scales, out=np.where(difference > 0, np.inf, 0.0), where=scales > 0)
        worst = max(worst, float(relative.max()))
        squares += float(np.square(np.minimum(relative, 1e100)).sum())
    return Rounding(worst, math.sqrt(squares / (int(judging.sum()) * flat(truth).shape[1])))


def _judged_samples(
    ours: NDArray[Any], truth: NDArray[Any], native: NDArray[Any], judging: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Rows of the samples that can judge; an infinity in the place of a number beyond the type's is 0 on all sides."""
    arrays = [flat(array) for array in (ours, truth, native)]
    for places in blocks(arrays[0]):
        told = judging[places]
        mine, true, own = (array[places] for array in arrays)
        if not told.all():
            mine, true, own = mine[told], true[told], own[told]
        if not told.any():
            continue
        if not _is_ordinary(true):
            meant = ~(np.abs(true) <= float(np.finfo(native.dtype).max)) & (mine == np.copysign(np.inf, true))
            mine, true, own = (np.where(meant, 0.0, array) for array in (mine, true, own))
        yield mine, true, own


def _sizes(truth: NDArray[Any], native: NDArray[Any], fill: float) -> NDArray[Any]:
    """Sizes of the numbers that are no fills; 0 for those that are."""
    sizes = np.abs(truth)
    return sizes if fill == math.inf else np.where(_are_fills(truth, native, fill), 0.0, sizes)


def fills(truth: NDArray[Any], native: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of large numbers that stand in the place of others: the truth has them to the last digit, as nothing that is computed."""
    return np.zeros(truth.shape, bool) if _is_ordinary(truth) else _are_fills(truth, native, _fill([(truth, native)]))


def _is_ordinary(truth: NDArray[Any]) -> bool:
    """True if all are numbers, and too small for fills: without a copy, as almost all outputs are."""
    numbers = flat(truth)
    return not numbers.size or bool(numbers.min() >= -_SMALLEST_FILL and numbers.max() <= _SMALLEST_FILL)


def _fill(samples: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Size above which numbers that the truth and the model share are fills."""
    computed = max((float(np.abs(true[true != own]).max(initial=0.0)) for true, own in samples), default=0.0)
    return max(_FILL * computed, _SMALLEST_FILL) if computed > 0 else math.inf


def _are_fills(truth: NDArray[Any], native: NDArray[Any], fill: float) -> NDArray[np.bool_]:
    return np.asarray((truth == native) & (np.abs(truth) > fill), bool)


def without_fills(
    outputs: Sequence[NDArray[Any]], reference: Sequence[NDArray[Any]], exact: Sequence[NDArray[Any]] | None
) -> tuple[Sequence[NDArray[Any]], Sequence[NDArray[Any]]]:
    """Outputs and the reference with 0 for `fills` of the reference that both have; ``exact`` is the truth of the reference."""
    if exact is None or [array.shape for array in outputs] != [array.shape for array in reference]:
        return outputs, reference
    same = [fills(truth, own) & (array == own) for truth, own, array in zip(exact, reference, outputs, strict=True)]
    if not any(filled.any() for filled in same):
        return outputs, reference
    mine, theirs = (
        [np.where(filled, 0, array).astype(array.dtype) for filled, array in zip(same, part, strict=True)]
        for part in (outputs, reference)
    )
    return mine, theirs


def judged(truth: NDArray[Any], native: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of samples that can judge an engine: the model gives numbers, and overflows only where the truth does."""
    if native.dtype.kind not in "fc" or (np.isfinite(native).all() and np.isfinite(truth).all()):
        return np.ones(len(flat(native)), bool)
    own, true = rows(native), rows(truth)
    with np.errstate(invalid="ignore"):
        overflows = np.isinf(own) & (np.abs(true) <= float(np.finfo(native.dtype).max))
    return np.asarray(~(np.isnan(own) | np.isnan(true) | overflows).any(axis=1), bool)


def beyond(found: Rounding, allowed: Rounding, *, truth: bool = True) -> str | None:
    """Reason why rounding does not explain an error, or None.

    One number of a weight that is off by a hundredth shows in the largest error; a step of quantisation that is off
    everywhere shows in the typical one, however far rounding may take a single number.

    Without ``truth``, ``found`` is the distance not from double precision but from the model, which is off by an error
    of its own.
    """
    finest = _FINEST if truth else 2 * _FINEST
    # What falls to one side of a tie, and how often, differs between correct engines.
    if found.integers > 2 * allowed.integers:
        return f"{100 * found.integers:.3g} % of the integer outputs differ"
    for error, known in ((found.largest, allowed.largest), (found.typical, allowed.typical)):
        # Written so that NaN fails.
        if not error <= max(finest, ROUNDINGS * known):
            times = error / max(known, UNIT_ROUNDOFF["fp32"])
            return f"relative error {error:.1e} is {times:.0f} times what rounding does to the model itself"
    return None


def tells(allowed: Rounding | None, native: NDArray[Any], precision: str) -> bool:
    """True if an output can tell a wrong engine from a right one, given ``allowed``; None stands for no numbers."""
    if allowed is None or not allowed.tells:
        return False
    if precision == "fp32":
        return True
    # What a rounding of the model's own type becomes, one of a coarser type becomes, too.
    amplified = allowed.largest / round_off(native) * UNIT_ROUNDOFF[precision]
    return amplified * _ACCUMULATED <= TOLERANCES[precision].max_rel


def round_off(output: NDArray[Any]) -> float:
    """Largest relative rounding error of one number of an output's type; for integers and booleans that of fp32."""
    return float(np.finfo(output.dtype).eps) / 2 if output.dtype.kind in "fc" else UNIT_ROUNDOFF["fp32"]


@dataclass(frozen=True)
class Judgement:
    """Judgement of one output."""

    error: Rounding
    """Difference from the truth."""
    near: Parity
    """Difference from the model's own output."""
    problem: str = ""
    """Reason why rounding does not explain the error; empty where it may."""


def judge(
    ours: NDArray[Any], native: NDArray[Any], truth: NDArray[Any] | None, allowed: Rounding | None, precision: str
) -> Judgement | None:
    """Judge an engine's output of the model's form (`require_form`); None where it cannot be told, as `tells` decides.

    ``native`` is the model's own output, and ``truth`` that in double precision, None where it is unknown. ``allowed``
    is the effect of rounding on it.
    """
    if allowed is None or not tells(allowed, native, precision):
        return None
    wanted = native if truth is None else truth
    error = errors(ours, wanted, native)
    told = judged(wanted, native)
    near = compare([ours], [native]) if told.all() else compare([ours[told]], [native[told]])
    fine = beyond(error, allowed, truth=truth is not None)
    if fine and precision != "fp32":
        # What is as near to the truth as the model itself in fp32 is right at any precision.
        fine = problem(near, precision)
    return Judgement(error, near, fine or "")


def _compare_exactly(ours: NDArray[Any], theirs: NDArray[Any]) -> Parity:
    """Compare integers and booleans exactly: a label, an index or a mask is right or wrong."""
    equal = ours == theirs
    if equal.all():
        return EXACT
    error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return Parity(float(error), float("inf"), 1.0, 1.0, float(equal.mean()))


def _compare_rounded(ours: NDArray[Any], theirs: NDArray[Any]) -> Parity:
    if not theirs.size:
        return EXACT
    mine, own = flat(ours), flat(theirs)
    parts = [
        _by_sample(rows(mine[places]), rows(own[places]), _UNDERFLOWS.get(theirs.dtype, 0.0)) for places in blocks(own)
    ]
    errors, sizes, top1, cosines = (np.concatenate(part) for part in zip(*parts, strict=True))
    if np.isnan(errors).any():
        return Parity(float("nan"), float("nan"), float("nan"), 0.0)
    return Parity(float(errors.max()), _relative(errors, sizes), float(cosines.min()), float(top1.mean()))


def _by_sample(ours: NDArray[np.float64], theirs: NDArray[np.float64], underflow: float) -> tuple[NDArray[Any], ...]:
    """Largest error of each sample, the size of its reference, whether its largest outputs are at one place, and the cosine.

    NaN is the error of a sample that is infinite or NaN on one side alone.
    """
    # What the model means, such as the infinity of a masked score or NaN for a sample that has no answer, is no error
    # where both have it; all others are.
    if not (np.isfinite(theirs).all() and np.isfinite(ours).all()):
        meant = ~np.isfinite(theirs) & ((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        ours, theirs = np.where(meant, 0.0, ours), np.where(meant, 0.0, theirs)
        if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
            return (np.full(len(ours), np.nan),) * 4
    ours = np.where(np.abs(ours - theirs) < underflow, theirs, ours)
    errors, sizes = np.abs(ours - theirs).max(axis=1), np.abs(theirs).max(axis=1)
    return errors, sizes, ours.argmax(axis=1) == theirs.argmax(axis=1), _cosines(ours, theirs)


def _relative(errors: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Largest error of a sample relative to its reference: infinite where that is zero."""
    scales = np.maximum(sizes, _SMALL * sizes.max())
    wrong = errors > 0
    if not wrong.any():
        return 0.0
    return float("inf") if not scales[wrong].all() else float((errors[wrong] / scales[wrong]).max())


def _cosines(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine similarity of each row. A single number has no direction, so its error alone judges it."""
    if ours.shape[1] == 1:
        return np.ones(len(ours))
    ours, theirs = _near_one(ours), _near_one(theirs)
    lengths = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    product = lengths[0] * lengths[1]
    both_zero = (lengths[0] == 0) & (lengths[1] == 0)
    return np.where(both_zero, 1.0, (ours * theirs).sum(axis=1) / np.where(product == 0, np.inf, product))


def _near_one(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each row by a power of two to about one: squares of 1e200 or 1e-200 are no numbers."""
    _, exponents = np.frexp(np.abs(matrix).max(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = np.ldexp(matrix, -exponents)
    return scaled


def worse(one: Parity, other: Parity) -> Parity:
    """The worse figure of each kind; NaN is worst."""
    return Parity(
        float(np.maximum(one.max_abs, other.max_abs)),
        float(np.maximum(one.max_rel, other.max_rel)),
        float(np.minimum(one.cosine, other.cosine)),
        float(np.minimum(one.top1, other.top1)),
        float(np.minimum(one.integers, other.integers)),
    )
