"""Check that a model is a function of its inputs, sample by sample: others cannot be verified or batched.

The baseline is checked before anything is compiled. Imports torch: for child processes only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph import parity
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import IncomparableError
from mlflow_ngraph.workloads.base import TensorSpec
from mlflow_ngraph.workloads.baseline import Baseline, ModuleBaseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Sequence["NDArray[Any]"]

_SHOWN = 3
"""Places that are named in a reason."""
_REPEATED_S = 0.5
_REPEATED = 20
"""The same input so often, or for so long: chance and state show in the outputs sooner or later."""


@dataclass
class Behaviour:
    """Observed properties of the baseline."""

    impure: str = ""
    """Reason why the outputs are no function of the inputs alone; empty if they are."""
    reads: list[str] = field(default_factory=list)
    """Lines of the model's Python code that look at the data, such as ``model.py:12: if x.sum() > 0``."""
    printed: list[str] = field(default_factory=list)
    """Those of them that look at the data as text, which no graph holds."""
    unfollowed: str = ""
    """Reason why the reads are unknown; empty if they are known."""
    mixes: str = ""
    """Interaction of a batch's samples; empty if there is none."""


def first_places(places: Sequence[str]) -> str:
    """Format the first of several places in one line."""
    more = len(places) - _SHOWN
    return "; ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def observe(baseline: Baseline, example: Arrays, others: Sequence[Arrays]) -> Behaviour:
    """Run the baseline repeatedly, also on ``others``, and look for state that it keeps."""
    if not isinstance(baseline, ModuleBaseline):
        return Behaviour(impure=_unsteady(baseline.run, example, others))
    behaviour = Behaviour()
    drawn = _follow(baseline, example, behaviour)
    behaviour.impure = _kept(baseline, example, drawn) or _unsteady(baseline.run, example, others)
    return behaviour


def differs_when_rebuilt(baseline: Baseline, again: Baseline, example: Arrays, others: Sequence[Arrays]) -> str:
    """Reason why a rebuilt model that sees other inputs first is another function; empty if it is the same."""
    for other in others:
        again.run(other)
    if _differ(baseline.run(example), again.run(example)):
        return "stateful: built again, and called with other inputs first, the model gives other outputs"
    return ""


def mixing(
    run: Callable[[Arrays], Arrays],
    inputs: Sequence[TensorSpec],
    results: Sequence[TensorSpec],
    example: Arrays,
    outputs: Arrays,
) -> str:
    """Describe how samples of a batch influence each other, by running the first and the last alone.

    Empty where they do not, or for a single sample.
    """
    axes = [spec.axis for spec in inputs]
    size = next((array.shape[axis] for array, axis in zip(example, axes, strict=True) if axis is not None), 1)
    for place in sorted({0, size - 1}) if size > 1 else ():
        try:
            alone = run([_only(array, axis, place) for array, axis in zip(example, axes, strict=True)])
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever the model's own code raises
            return f"sample {place} of a batch of {size} is not accepted alone"
        for index, (single, whole) in enumerate(zip(alone, outputs, strict=True)):
            axis = results[index].axis
            if axis is None or whole.shape[axis] != size or single.shape != _only(whole, axis, place).shape:
                return f"output {index} is one for the whole batch of {size}"
            if parity.problem(parity.compare([single], [_only(whole, axis, place)]), "fp32"):
                return f"sample {place} of a batch of {size} has another output {index} than alone"
    return ""


def _only(array: NDArray[Any], axis: int | None, place: int) -> NDArray[Any]:
    return array if axis is None else np.take(array, [place], axis=axis)


def _kept(baseline: ModuleBaseline, example: Arrays, places: Sequence[str]) -> str:
    """State that a second call with the same input changes again: counters, or random draws at one of ``places``."""
    from mlflow_ngraph.workloads import state

    baseline.run(example)  # what is made once, such as a table of positions, is there after this
    before = state.snapshot(baseline.module)
    baseline.run(example)
    changed = state.changes(before, state.snapshot(baseline.module))
    drawn = state.draws(changed)
    if drawn:
        where = f", in {places[0]}" if places else ""
        return f"nondeterministic: each call draws random numbers from the generator of {drawn[0]}{where}"
    if changed and _matter(baseline, example, changed):
        name = min(changed)
        return f"stateful: each call changes {name!r} of the model, and the next one may depend on it"
    return ""


def _matter(baseline: ModuleBaseline, example: Arrays, changed: Iterable[str]) -> bool:
    """True if outputs depend on state that a call changes. An unused counter is no memory."""
    from mlflow_ngraph.workloads import state

    outputs = baseline.run(example)
    try:
        with closing(state.moved(baseline.module, changed)) as moves:
            return any(_differ(outputs, baseline.run(example)) for _ in moves)
    except TypeError:
        return True


def _unsteady(run: Callable[[Arrays], Arrays], example: Arrays, others: Sequence[Arrays]) -> str:
    """Reason why the same input gives different outputs, at once or after other inputs; empty if it does not."""
    first, start = run(example), time.perf_counter()
    for _ in range(_REPEATED):
        if _differ(first, run(example)):
            return "nondeterministic: the same input gives other outputs from call to call"
        if time.perf_counter() - start > _REPEATED_S:
            break
    for other in others:
        run(other)
    if _differ(first, run(example)):
        return "stateful: the same input gives other outputs after other inputs have been seen"
    return ""


def _differ(outputs: Arrays, other: Arrays) -> bool:
    try:
        return parity.problem(parity.compare(outputs, other), "fp32") is not None
    except IncomparableError:
        return True


def _follow(baseline: ModuleBaseline, example: Arrays, behaviour: Behaviour) -> list[str]:
    """Follow data that reach Python; returns the places that draw random numbers."""
    from mlflow_ngraph.workloads.calling import tensors
    from mlflow_ngraph.workloads.data_reads import follow

    try:
        followed = follow(baseline.module, tensors(example))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - not every layer runs while it is watched
        import torch

        torch.compiler.reset()  # what PyTorch compiled for itself, such as a `torch.cond`, would ask for the watch again
        behaviour.unfollowed = one_line(error)
        return []
    behaviour.reads, behaviour.printed = followed.reads, followed.printed
    return followed.draws
