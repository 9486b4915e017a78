"""What an ONNX graph computes by the standard's definition, in two precisions, by two evaluators that share no code.

Nothing of the package has a part in it: it tells whether the package's verdicts are right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Array = NDArray[Any]
Arrays = Sequence[Array]

RIGHT = 5e-6
"""A relative error that no fault is needed for."""
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_GROWN = 10.0
"""How many times what rounding was seen to do is still rounding."""
_FAR = 20.0
"""From how many times on it is none."""
_MOVED = 2.0**-23
_DRAWS = 6
_WIDTH = 4
"""Bytes of a number in single precision, which has room for what is a million times larger than a model's own numbers."""


@dataclass(frozen=True)
class Judgement:
    """What outputs are by the definition."""

    word: str
    """``right`` or ``wrong``; ``NaN``, ``tie`` or ``ill-conditioned`` where the definition does not decide; ``disputed`` where
    its evaluators contradict each other."""
    error: float = 0.0
    """Largest error relative to the largest number of an output."""
    noise: float = 0.0
    """The same of the definition itself, in float32, and with inputs that are off by a rounding."""
    output: int = 0


class Definition:
    """A graph, and what it gives for inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._names = [value.name for value in model.graph.input]

    def judge(self, outputs: Arrays, inputs: Arrays) -> Judgement:
        """Compare outputs with the definition; the worst judgement of any output."""
        families = [(narrow, self._family(wide, narrow, inputs)) for wide, narrow in self._evaluators]
        known = [(narrow, family) for narrow, family in families if family]
        if not known:
            return Judgement("no definition")
        return max(
            (
                _agreed([self._judged(index, ours, narrow, family, inputs) for narrow, family in known])
                for index, ours in enumerate(outputs)
            ),
            key=_badness,
        )

    def _judged(self, index: int, ours: Array, narrow: Any, family: Sequence[Arrays], inputs: Arrays) -> Judgement:
        """One output by one evaluator."""
        known = [one[index] for one in family]
        found = _judged(index, ours, known)
        if found.word != "wrong":
            return found
        # Zeros times any factor are zeros, and what is made of them is equal: which of it is the largest is open, and so is what
        # their variance divides.
        others = [one[index] for one in self._tried(narrow, inputs, _moved_by_size)]
        if _is_among(ours, [*known, *others]):
            return replace(found, word="tie")
        explained = found.error <= _judged(index, ours, [known[0], *others]).noise
        return replace(found, word="ill-conditioned") if explained else found

    def _family(self, wide: Any, narrow: Any, inputs: Arrays) -> list[Arrays]:
        """The truth by one evaluator, in double precision where it can, and what rounding makes of it."""
        exact = [
            _tried(wide, self._named(inputs, wide=True)),
            *(_tried(evaluator, self._named(inputs)) for evaluator in (narrow, self._flushing)),
        ]
        return [*(one for one in exact if one is not None), *self._tried(narrow, inputs, _moved)]

    def _tried(
        self, narrow: Any, inputs: Arrays, moved: Callable[[Array, np.random.Generator], Array]
    ) -> Iterator[Arrays]:
        """The outputs for inputs that are a little off."""
        rng = np.random.default_rng(0)
        for _ in range(_DRAWS):
            found = _tried(narrow, self._named([moved(array, rng) for array in inputs]))
            if found is not None:
                yield found

    def _named(self, inputs: Arrays, *, wide: bool = False) -> dict[str, Array]:
        return {
            name: array.astype(np.float64) if wide and array.dtype == np.float32 else array
            for name, array in zip(self._names, inputs, strict=True)
        }

    @cached_property
    def _flushing(self) -> _Session:
        """Single precision with zero for powers of e below the smallest normal number, as kernels of some processors have it."""
        return _Session(_flushed(self._model))

    @cached_property
    def _evaluators(self) -> list[tuple[Any, Any]]:
        """Each in double precision and in single."""
        models = widened(self._model), in_terms_of_others(self._model)
        runtime = [(_Session(models[0]), _Session(models[1]))]
        before = BEFORE_13 if self._model.opset_import[0].version < 13 else []
        return [
            (ReferenceEvaluator(models[0], new_ops=before), ReferenceEvaluator(models[1], new_ops=before)),
            *runtime,
        ]


def _as_rows(array: Array, axis: int) -> Array:
    return array.reshape(int(np.prod(array.shape[: axis % array.ndim])), -1)


class Softmax(OpRun):  # type: ignore[misc]
    """As before opset 13: over all axes from one on. The reference evaluator has it as since then."""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        powers = np.exp(_as_rows(x, axis) - _as_rows(x, axis).max(axis=1, keepdims=True))
        return ((powers / powers.sum(axis=1, keepdims=True)).reshape(x.shape).astype(x.dtype),)


class LogSoftmax(OpRun):  # type: ignore[misc]
    """The same for its logarithm."""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        away = _as_rows(x, axis) - _as_rows(x, axis).max(axis=1, keepdims=True)
        return ((away - np.log(np.exp(away).sum(axis=1, keepdims=True))).reshape(x.shape).astype(x.dtype),)


class Hardmax(OpRun):  # type: ignore[misc]
    """The same for one at the first of the largest numbers."""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
        as_rows = _as_rows(x, axis)
        places = np.arange(as_rows.shape[1]) == as_rows.argmax(axis=1)[:, None]
        return (places.reshape(x.shape).astype(x.dtype),)


BEFORE_13 = [Softmax, LogSoftmax, Hardmax]


class _Session:
    """ONNX Runtime without optimisation."""

    def __init__(self, model: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        except Exception as error:  # noqa: BLE001 - kernels that it lacks
            self._session = None
            self._error = error

    def run(self, names: Any, feeds: dict[str, Array]) -> Arrays:
        if self._session is None:
            raise self._error
        found: Arrays = self._session.run(names, feeds)
        return found


def _tried(evaluator: Any, feeds: dict[str, Array]) -> Arrays | None:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(value) for value in evaluator.run(None, feeds)]
    except Exception:  # noqa: BLE001 - an operator that it lacks, in this type
        return None


def _moved(array: Array, rng: np.random.Generator) -> Array:
    """Numbers that are off by a rounding of their own."""
    if array.dtype.kind != "f":
        return array
    return (array * (1 + _MOVED * rng.uniform(-1, 1, array.shape))).astype(array.dtype)


def _moved_by_size(array: Array, rng: np.random.Generator) -> Array:
    """Numbers that are off by a rounding of the largest one of their sample."""
    if array.dtype.kind != "f":
        return array
    largest = np.abs(array).max(axis=tuple(range(1, array.ndim)), keepdims=True, initial=0.0)
    moved: Array = (array + _MOVED * largest * rng.uniform(-1, 1, array.shape)).astype(array.dtype)
    return moved


def in_terms_of_others(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with the operator that the standard writes as others, and that evaluators take for another one.

    What is left out where it has changed is written out: the reference evaluator takes it for today's.
    """
    written = inline_selected_functions(model, [("", "MeanVarianceNormalization")], inline_schema_functions=True)
    if written.opset_import[0].version < 13:
        for node in written.graph.node:
            if node.op_type in {one.__name__ for one in BEFORE_13} and not node.attribute:
                node.attribute.append(helper.make_attribute("axis", 1))
    return written


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with double precision wherever it has less."""
    wide = in_terms_of_others(model)
    graph = wide.graph
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in _tensors(graph):
        if tensor.data_type in _NARROW:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
        if node.op_type == "Resize":  # its scales are float in any precision
            _narrow(graph, node.input[1:3])
    return wide


def _flushed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with zero for powers of e below the smallest normal number of single precision."""
    flushing = in_terms_of_others(model)
    nodes = list(flushing.graph.node)
    del flushing.graph.node[:]
    for node in nodes:
        flushing.graph.node.append(node)
        if node.op_type in ("Exp", "Sigmoid", "Softmax"):
            name, own = node.output[0], flushing.graph.node[-1]
            own.output[0], size, is_small = f"{name} whole", f"{name} size", f"{name} is small"
            flushing.graph.node.extend(
                [
                    helper.make_node("Abs", [own.output[0]], [size]),
                    helper.make_node("Less", [size, "smallest"], [is_small]),
                    helper.make_node("Where", [is_small, "nothing", own.output[0]], [name]),
                ]
            )
    constants = {"smallest": np.finfo(np.float32).smallest_normal, "nothing": np.float32(0)}
    flushing.graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    )
    return flushing


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def _narrow(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    for tensor in graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _judged(index: int, ours: Array, known: Sequence[Array]) -> Judgement:
    truth = known[0]
    if ours.shape != truth.shape:
        return Judgement("wrong", float("inf"), 0.0, index)
    if ours.dtype.kind in "biu":
        differ = ours != truth
        if not differ.any():
            return Judgement("right", output=index)
        open_ = np.any([one != truth for one in known], axis=0)
        # What lies beside what rounding was seen to change is decided by it too.
        return Judgement("tie" if open_.any() else "wrong", float(differ.mean()), float(open_.mean()), index)
    wide = [np.asarray(array, np.float64) for array in (ours, *known)]
    # Whether what is near the largest number overflows on the way depends on the way.
    limit = float(np.finfo(ours.dtype).max) / (8 if ours.dtype.itemsize < _WIDTH else 1e6)
    odd = [~(np.abs(array) <= limit) for array in wide]
    if (odd[0] & ~np.any(odd[1:], axis=0)).any() or (~odd[0] & np.all(odd[1:], axis=0)).any():
        return Judgement("wrong", float("nan"), 0.0, index)
    if any((one != odd[1]).any() for one in odd):
        return Judgement("NaN", float("nan"), float("nan"), index)
    wide = [np.where(odd[1], 0.0, array) for array in wide]
    scale = float(np.abs(wide[1]).max(initial=0.0)) or 1.0
    errors = [float(np.abs(array - wide[1]).max(initial=0.0)) / scale for array in wide]
    error, noise = errors[0], max(errors[2:], default=0.0)
    right, wrong = error <= max(RIGHT, _GROWN * noise), error > _FAR * noise
    return Judgement("right" if right else "wrong" if wrong else "ill-conditioned", error, noise, index)


def _is_among(ours: Array, known: Sequence[Array]) -> bool:
    """Whether each number is one that the definition gives for some inputs that are a little off."""
    if any(one.shape != ours.shape for one in known):
        return False
    scale = float(np.abs(known[0]).max(initial=0.0)) or 1.0
    away = np.min([np.abs(np.asarray(ours, np.float64) - one) for one in known], axis=0)
    return bool((away <= RIGHT * scale).all())


def _agreed(judgements: Sequence[Judgement]) -> Judgement:
    """The mildest judgement, or that the evaluators contradict each other; what is a tie to one of them is no more than that."""
    mildest, hardest = min(judgements, key=_badness), max(judgements, key=_badness)
    if mildest.word == "right" and hardest.word == "wrong":
        return replace(hardest, word="disputed")
    return hardest if (mildest.word, hardest.word) == ("right", "tie") else mildest


def _badness(found: Judgement) -> tuple[int, float]:
    order = ("right", "tie", "NaN", "disputed", "ill-conditioned", "wrong")
    return order.index(found.word), found.error
