"""Run the PyTorch or ONNX baseline for reference outputs, also in other arithmetic. For child processes only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import BATCH, TensorSpec, Wrapper, fixed_batch
from mlflow_ngraph.workloads.samples import drawn
from mlflow_ngraph.workloads.specs import running

if TYPE_CHECKING:
    import onnx
    import torch
    from numpy.typing import NDArray

_SEEDS = 0.0, 0.5
"""Seeds of disturbed copies of a file."""
_ORDERS = 6
"""More draws of a model that says where numbers are."""
_ALONE = 8
"""Runs in which a part of the operations that round to steps does so to the other side, at most."""
_PROBES = (2, 3)
"""Batch sizes that tell which axis of an output is the batch axis. Not every model takes a sample alone: one that
normalises by its batch does not."""


class ModuleBaseline:
    """A PyTorch model in eager mode.

    ``module`` returns a tensor or a tuple of tensors, and leaves its inputs unchanged, once it has run: other models
    are wrapped then, and ``wrapped`` lists the wrappers from the inside out.
    """

    def __init__(self, module: torch.nn.Module, wrapped: Sequence[Wrapper] = ()) -> None:
        self.module = module
        self.wrapped: list[Wrapper] = list(wrapped)

    @property
    def name(self) -> str:
        import torch

        return f"torch {torch.__version__} eager"

    @property
    def own(self) -> torch.nn.Module:
        """The module without its wrappers, some of which only certain inputs ask for."""
        module = self.module
        for _ in self.wrapped:
            module = module.model
        return module

    def settle(self, inputs: Sequence[NDArray[Any]]) -> None:
        """Let a model compute gradients, if it does so for these inputs."""
        from mlflow_ngraph.workloads.calling import tensors
        from mlflow_ngraph.workloads.gradients import computes_gradients

        if "gradients" not in self.wrapped and computes_gradients(self.module, tensors(inputs)):
            self._wrap("gradients")

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        import torch

        from mlflow_ngraph.workloads.calling import arrays, is_flat, tensors

        given = tensors(inputs)
        # No inference mode: a model may keep what it computes first, such as a table, and cannot be exported with it then.
        with torch.no_grad():
            outputs = self.module(*given)
        if not is_flat(outputs):
            self._wrap("flat_outputs")
        if "copied_inputs" not in self.wrapped and _changed(inputs, arrays(tuple(given))):
            self._wrap("copied_inputs")
            return self.run(inputs)  # an output may have been a view of an input
        return arrays(outputs)

    def disturbances(self, inputs: Sequence[NDArray[Any]], seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        """Outputs in less exact arithmetic, and its rounding errors as multiples of the model's own."""
        from mlflow_ngraph.workloads.arithmetic import OF_STEPS, TIMES, AcrossSteps, Disturbed
        from mlflow_ngraph.workloads.naive_sums import Naive

        def drawn_with(mode: Disturbed) -> tuple[float, list[NDArray[Any]]]:
            return TIMES, self._within(mode, inputs, mode.disturb_input)

        own = self._state()
        first, coherent = Disturbed(seed, own=own), Disturbed(seed, coherent=True, own=own)
        found = [drawn_with(first), drawn_with(coherent)]
        if first.orders:
            # Each draw leaves two equal numbers in their order half of the time.
            seeds = range((_ORDERS + 1) * seed + 1, (_ORDERS + 1) * (seed + 1))
            found += [drawn_with(Disturbed(other, own=own)) for other in seeds]
        if first.steps:
            same = _in_both(first.equal, coherent.equal)
            beside = AcrossSteps((), same)
            self._within(beside, inputs)
            # Each alone, too: what falls to its other side may take what comes later away from there.
            alone = [None, *(some for some in np.array_split(beside.beside, _ALONE) if len(some))]
            across = [AcrossSteps(some, same) for some in alone] if beside.beside else []
            found += [(OF_STEPS, self._within(mode, inputs)) for mode in across]
        return [*found, (1.0, self._within(Naive(), inputs))]

    def exact(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Outputs in double precision, also of operations that the model itself rounds."""
        import torch

        from mlflow_ngraph.workloads.double_precision import double_precision

        kinds = {tensor.dtype for tensor in self._state() if tensor.is_floating_point()}
        return self._within(double_precision(kinds.pop() if len(kinds) == 1 else torch.float32), inputs)

    def _within(
        self, mode: Any, inputs: Sequence[NDArray[Any]], changed: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> list[NDArray[Any]]:
        import torch

        from mlflow_ngraph.workloads.arithmetic import is_recurrent, plain_operations
        from mlflow_ngraph.workloads.calling import arrays, tensors

        with torch.no_grad(), plain_operations(recurrent=is_recurrent(self.module)), self._kept():
            given = tensors(inputs)
            if changed is not None:
                try:
                    moved = [changed(tensor) for tensor in given]
                    with mode:
                        return arrays(self.module(*moved))
                except (ValueError, RuntimeError, AssertionError, IndexError):
                    pass  # an input may have to be a whole number, or at most 1: then the operations alone are changed
            with mode:
                return arrays(self.module(*given))

    def _state(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Put the model's own parameters and buffers back in the end: some models set them when they are called."""
        from mlflow_ngraph.workloads.data_reads import memory

        kept = [(tensor, tensor.data) for tensor in self._state()]
        try:
            yield
        finally:
            for tensor, data in kept:
                if memory(tensor) != memory(data):
                    tensor.data = data

    def _wrap(self, wrapper: Wrapper) -> None:
        from mlflow_ngraph.workloads.calling import wrap

        self.module = wrap(self.module, [wrapper])
        self.wrapped.append(wrapper)

    def digest(self) -> str:
        from mlflow_ngraph.workloads import weights

        return weights.digest(self.module)


class OnnxBaseline:
    """An ONNX file that cannot be expressed in PyTorch, run by ONNX Runtime without any optimisation."""

    def __init__(self, file: Path, reason: str) -> None:
        self.file = file
        self.reason = reason
        """Reason why there is no PyTorch model."""

    @property
    def name(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__} without optimisation"

    def run(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self._run(self._session, inputs)

    def digest(self) -> str:
        """Digest of the file and its external data, which lie in a directory of their own."""
        result = hashlib.sha256()
        for path in sorted(self.file.parent.rglob("*")):
            if path.is_file():
                result.update(path.read_bytes())
        return result.hexdigest()

    def disturbances(self, inputs: Sequence[NDArray[Any]], seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        """Outputs in less exact arithmetic, and its rounding errors as multiples of the file's own."""
        from mlflow_ngraph.workloads.arithmetic import OF_STEPS, TIMES

        rng = np.random.default_rng([seed, 1])
        found = [
            (TIMES, self._run(session, [_moved(array, rng, TIMES) for array in inputs])) for session in self._disturbed
        ]
        return [*found, *((OF_STEPS, self._run(session, inputs)) for session in self._across_steps)]

    def exact(self, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]] | None:
        """None: a file's types are fixed."""
        return None

    @staticmethod
    def _run(session: Any, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        names = [node.name for node in session.get_inputs()]
        outputs = session.run(None, dict(zip(names, inputs, strict=True)))
        return [np.asarray(output) for output in outputs]

    @cached_property
    def _session(self) -> Any:
        return self._opened(str(self.file))

    @cached_property
    def _disturbed(self) -> list[Any]:
        from mlflow_ngraph.workloads.onnx_arithmetic import disturbed

        return [self._opened(disturbed(self._model, seed).SerializeToString()) for seed in _SEEDS]

    @cached_property
    def _across_steps(self) -> list[Any]:
        from mlflow_ngraph.workloads.onnx_arithmetic import across_steps

        models = [across_steps(self._model, side) for side in (-1.0, 1.0)]
        return [self._opened(model.SerializeToString()) for model in models if model is not None]

    @cached_property
    def _model(self) -> onnx.ModelProto:
        import onnx

        return onnx.load(str(self.file), load_external_data=False)

    def _opened(self, model: str | bytes) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        # Where the weights are of a model that comes as bytes.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self.file.parent))
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


Baseline = ModuleBaseline | OnnxBaseline


def output_specs(
    baseline: Baseline,
    inputs: tuple[TensorSpec, ...],
    workload: str,
    samples: Sequence[NDArray[Any]] | None,
    known: Sequence[str] = (),
) -> tuple[TensorSpec, ...]:
    """Run the model on samples, else on random inputs, and describe its outputs, by their ``known`` names if they are told apart.

    Raises `WorkloadError` if the model fails on its own inputs.
    """
    only = fixed_batch(inputs)
    batches = _PROBES if only is None else (only,)
    runs: list[list[NDArray[Any]]] = []
    for batch in batches:
        rng = np.random.default_rng(0)
        with running(workload, inputs, batch):
            given = drawn(inputs, samples, batch, rng)
            if isinstance(baseline, ModuleBaseline) and not runs:
                baseline.settle(given)
            runs.append(baseline.run(given))
    if len(runs[0]) != len(runs[-1]):
        found = " and ".join(f"{len(run)} for {batch} samples" for run, batch in zip(runs, batches, strict=True))
        raise WorkloadError(f"workload {workload} returns {found}: let it return tensors of all samples of a batch")
    if not runs[0]:
        raise WorkloadError(f"workload {workload} returns no tensor")
    names = ["output"] if len(runs[0]) == 1 else [f"output_{index}" for index in range(len(runs[0]))]
    if len({*known, *(spec.name for spec in inputs)}) == len(names) + len(inputs):
        names = list(known)
    return tuple(
        TensorSpec(name, first.dtype.name, _shape(first.shape, last.shape))
        for name, first, last in zip(names, runs[0], runs[-1], strict=True)
    )


def _moved(array: NDArray[Any], rng: np.random.Generator, times: float) -> NDArray[Any]:
    """Disturb an input by a number of roundings, unless it is a mask of zeros and ones; zeros by a share of its usual size."""
    if array.dtype.kind not in "fc" or (array.any() and np.isin(array, (0, 1)).all()):
        return array
    size = np.abs(np.where(np.isfinite(array), array, 0))
    mean = size.mean() if array.size else 0.0
    size = size + (1e-2 * mean if mean > 0 else 1.0)
    by = times * np.finfo(array.dtype).eps / 2
    moved: NDArray[Any] = (array + by * size * rng.uniform(-1, 1, array.shape)).astype(array.dtype)
    return moved


def _in_both(first: Mapping[int, torch.Tensor], second: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Places that are marked in both, by operation."""
    shared = [place for place in first if place in second and first[place].shape == second[place].shape]
    return {place: first[place] & second[place] for place in shared}


def _changed(before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> bool:
    return any(
        not np.array_equal(original, other, equal_nan=original.dtype.kind in "fc")
        for original, other in zip(before, after, strict=True)
    )


def _shape(first: tuple[int, ...], last: tuple[int, ...]) -> tuple[int | str, ...]:
    """Shape of an output whose batch axis is the one that follows the batch size."""
    return tuple(BATCH if (size, other) == _PROBES else size for size, other in zip(first, last, strict=True))
