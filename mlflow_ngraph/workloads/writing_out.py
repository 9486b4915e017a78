"""Write a module in memory to files for other processes: an exported program, else a pickle. Imports torch."""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, ShapesCollection, export
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._pytree import tree_leaves, tree_map

from mlflow_ngraph import credentials
from mlflow_ngraph import home as home_directory
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import NGraphError, UnsupportedError, WorkloadError
from mlflow_ngraph.sample_arrays import save_arrays
from mlflow_ngraph.workloads import content
from mlflow_ngraph.workloads.base import BATCH
from mlflow_ngraph.workloads.calling import called_flat, flatten_outputs
from mlflow_ngraph.workloads.evaluation import evaluate, training_operations
from mlflow_ngraph.workloads.exporting import save_program
from mlflow_ngraph.workloads.initialise import seeded
from mlflow_ngraph.workloads.side_effects import settings_restored
from mlflow_ngraph.workloads.unwrapping import unwrapped

_FEWEST = 2
"""Samples of an example for an export for any batch size: torch.export takes sizes of 0 and 1 for constants."""
_DIGITS = 16
"""Digits of a digest in the name of a file."""
_CLOSE = 1e-4
"""Tolerance between the module and its exported program, or its pickle in another process."""
_ANSWERING = f"import sys; from {__name__} import answer; answer(*sys.argv[1:])"
_log = logging.getLogger(__name__)


def write_out(model: nn.Module, inputs: Any, name: str, batch_axis: int | None, home: Path | None) -> dict[str, Any]:
    """Write a module below the directory of studies, under a digest; returns the workload for a study file.

    For any batch size as a program of `torch.export`, else as a pickle where its classes can be imported, else as a
    program for the batch size of the example.

    Raises `WorkloadError` if none of these can be written.
    """
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"workload {name}: {type(model).__name__} is no torch.nn.Module: hand over the module itself"
        )
    problem = _unready(model)
    if problem:
        raise WorkloadError(f"workload {name} {problem}")
    args, kwargs = _arguments(inputs, name)
    directory = home_directory.directory(home) / "modules"
    directory.mkdir(exist_ok=True)
    copy = _copied(model, name)
    axes = _axes(tree_leaves((args, kwargs)), batch_axis, name)
    with settings_restored(), _silent():
        try:
            _called(copy, args, kwargs)
        except Exception as error:
            raise WorkloadError(f"workload {name} does not run on its example inputs: {one_line(error)}") from error
        found, remark = _WritingOut(copy, args, kwargs, axes, directory).written(name, batch_axis)
    if remark:
        _log.warning("workload %s %s", name, remark)
    return found


def _unready(model: nn.Module) -> str:
    """Reason why a module cannot be used, with advice; empty if there is none."""
    numbers = [*model.parameters(), *model.buffers()]
    if any(isinstance(tensor, UninitializedTensorMixin) for tensor in numbers):
        return "has parameters without a shape yet: call it once on its example inputs"
    if any(tensor.is_meta for tensor in numbers):
        return "is on the device meta, and has no numbers: load its weights on the CPU"
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        return "is of TorchScript, which torch.export does not read: hand over the module that it was made from"
    return ""


class _WritingOut:
    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        axes: Sequence[int | None],
        directory: Path,
    ) -> None:
        self._model, self._args, self._kwargs, self._axes = model, args, kwargs, axes
        self._directory = directory
        self._leaves: list[torch.Tensor] = tree_leaves((args, kwargs))

    def written(self, name: str, batch_axis: int | None) -> tuple[dict[str, Any], str]:
        """Workload for a study file, and notes for its user."""
        options: dict[str, Any] = {"label": name}
        if batch_axis != 0:
            options["batch_axis"] = "none" if batch_axis is None else batch_axis
        try:
            return self._program(options, free=batch_axis is not None), ""
        except Exception as error:  # noqa: BLE001 - exporters raise anything
            no_export = f"torch.export: {one_line(error)}"
        try:
            return self._pickled(options), f"is written as a pickle: {no_export}"
        except UnsupportedError as error:
            no_pickle = f"pickle: {error}"
        if batch_axis is not None:
            try:
                found = self._program(options, free=False)
            except Exception as error:  # noqa: BLE001 - exporters raise anything
                no_export = f"torch.export: {one_line(error)}"
            else:
                return found, f"is written for the batch size of its example only: {no_export}; {no_pickle}"
        raise WorkloadError(f"workload {name} cannot be written out: {no_export}; {no_pickle}")

    def _program(self, options: Mapping[str, Any], *, free: bool) -> dict[str, Any]:
        """Export the module, for any batch size or for that of the example."""
        program = self._exported(free=free)
        operations = training_operations(program)
        if operations:
            raise UnsupportedError(f"it computes as in training: {operations[0]}")
        expected = _called(self._model, self._args, self._kwargs)
        found = _called(program.module(), self._args, self._kwargs)
        if not _alike(found, expected):
            raise UnsupportedError("the program gives other outputs than the module does")
        stated = [
            f"{node.name} {node.meta['val'].dtype} {[size if isinstance(size, int) else BATCH for size in node.meta['val'].shape]}"
            for node in program.graph.nodes
            if node.op == "placeholder"
        ]
        digest = content.of_module(called_flat(program), stated)[:_DIGITS]
        file = self._directory / f"{digest}.pt2"
        if not file.is_file():
            save_program(program, file)
        names = [str(name) for name in program.graph_signature.user_inputs]
        return {"ref": f"pt2:{file}", "options": {**options, **self._samples(names)}}

    def _exported(self, *, free: bool) -> ExportedProgram:
        if not free:
            return export(self._model, self._args, self._kwargs)
        several = iter(_several(leaf, axis) for leaf, axis in zip(self._leaves, self._axes, strict=True))
        args, kwargs = tree_map(lambda _: next(several), (self._args, self._kwargs))
        batch, shapes = Dim(BATCH, min=1), ShapesCollection()
        for leaf, axis in zip(tree_leaves((args, kwargs)), self._axes, strict=True):
            shapes[leaf] = {} if axis is None else {axis: batch}
        return export(self._model, args, kwargs, dynamic_shapes=shapes)

    def _pickled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Pickle the module, where its classes can be imported."""
        for part in self._model.modules():
            _require_importable(type(part))
        entries = self._args or tuple(self._kwargs.values())
        if not all(isinstance(entry, torch.Tensor) for entry in entries):
            raise UnsupportedError("its inputs are nested")
        specs = [
            {"shape": [BATCH if at == axis else size for at, size in enumerate(leaf.shape)], "dtype": _dtype(leaf)}
            for leaf, axis in zip(self._leaves, self._axes, strict=True)
        ]
        file = self._directory / f"{content.of_module(self._model, [str(specs)])[:_DIGITS]}.pt"
        temporary = file.with_name(f"partial-{file.name}")
        try:
            torch.save(self._model, temporary)
            self._require_alike_elsewhere(temporary)
            temporary.replace(file)
        except UnsupportedError:
            raise
        except Exception as error:
            raise UnsupportedError(one_line(error)) from error
        finally:
            temporary.unlink(missing_ok=True)
        numbered = ["input"] if len(specs) == 1 else [f"input_{place}" for place in range(len(specs))]
        names = list(self._kwargs) or numbered
        return {
            "ref": f"torch:{unpickled.__module__}:{unpickled.__name__}",
            "options": {
                **options,
                "inputs": dict(zip(names, specs, strict=True)) if self._kwargs else specs,
                "kwargs": {"file": str(file)},
                **self._samples(names),
            },
        }

    def _require_alike_elsewhere(self, file: Path) -> None:
        """Refuse classes that were changed since their import: a pickle has only their names."""
        with TemporaryDirectory() as place:
            example, answer = Path(place, "example.pt"), Path(place, "answer.pt")
            torch.save((self._args, self._kwargs), example)
            here = [_run(file, example) for _ in range(2)]
            if not _alike(*here):
                return  # it draws random numbers, or the like: preparing it says so
            command = [sys.executable, "-c", _ANSWERING, str(file), str(example), str(answer)]
            env = credentials.clean_environment()
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode != 0:
                reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
                raise UnsupportedError(f"no other process runs it: {reason}")
            there = torch.load(answer, weights_only=True)
        if not _alike(there, here[0]):
            raise UnsupportedError(
                "another process computes something else with it, because code was changed after its import: put the change into "
                f"the file of {type(self._model).__qualname__}, and begin again"
            )

    def _samples(self, names: Sequence[str]) -> dict[str, str]:
        """Use the example as samples, because random integers may be meaningless to the model."""
        if all(leaf.is_floating_point() for leaf in self._leaves):
            return {}
        arrays = {name: leaf.numpy() for name, leaf in zip(names, self._leaves, strict=True)}
        result = hashlib.sha256()
        for name, array in arrays.items():
            result.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
        file = self._directory / f"{result.hexdigest()[:_DIGITS]}.npz"
        if not file.is_file():
            save_arrays(file, **arrays)
        return {"samples": str(file)}


def unpickled(file: str) -> Any:
    """Load a module of `write_out`: a factory for ``torch:``. Pickles are code, as a factory is."""
    return torch.load(file, weights_only=False)


def _called(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Outputs of a model that writes neither to its inputs nor, permanently, to its buffers."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args, kwargs = tree_map(torch.clone, (args, kwargs))
    try:
        with torch.enable_grad():  # some models compute gradients themselves
            return [output.detach().clone() for output in flatten_outputs(model(*args, **kwargs))]
    finally:
        for name, value in before.items():
            owner, _, leaf = name.rpartition(".")
            buffer = model.get_buffer(name)
            if buffer.shape == value.shape:
                buffer.copy_(value)  # who else holds it, such as the program that this module was made of, sees it
            else:
                setattr(model.get_submodule(owner), leaf, value)


def answer(file: str, example: str, target: str) -> None:
    """Run the module in a file on the inputs in another, in a process of its own, and write its outputs."""
    torch.save(_run(Path(file), Path(example)), target)


def _run(file: Path, example: Path) -> Sequence[torch.Tensor]:
    args, kwargs = torch.load(example, weights_only=True)
    with seeded(0), torch.enable_grad():
        return [output.detach() for output in flatten_outputs(unpickled(str(file))(*args, **kwargs))]


def _alike(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    try:
        torch.testing.assert_close(found, expected, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
    except AssertionError:
        return False
    return True


def _arguments(inputs: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the module, as tensors on the CPU."""
    given = inputs if isinstance(inputs, tuple | list | Mapping) else (inputs,)
    strangers = [type(leaf).__name__ for leaf in tree_leaves(given) if not isinstance(leaf, torch.Tensor | np.ndarray)]
    if strangers or not tree_leaves(given):
        found = strangers[0] if strangers else "nothing"
        raise WorkloadError(
            f"workload {name}: its inputs are tensors or NumPy arrays, found {found}: write Live(module, inputs)"
        )
    tensors = tree_map(lambda leaf: torch.as_tensor(leaf).detach().cpu().clone(), given)
    return ((), dict(tensors)) if isinstance(tensors, Mapping) else (tuple(tensors), {})


def _copied(model: nn.Module, name: str) -> nn.Module:
    try:
        with torch.no_grad():  # parts that are scripted would be computed from those that are copied
            copy = deepcopy(model)
    except Exception as error:
        raise WorkloadError(
            f"workload {name} cannot be copied: {one_line(error)}: let a function in a file, such as models.py, build it, and "
            "write torch:models:function"
        ) from error
    try:
        return evaluate(unwrapped(copy), name)
    except NGraphError:
        raise
    except Exception as error:
        raise WorkloadError(f"workload {name} cannot be put into evaluation mode: {one_line(error)}") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress output of torch.export for its developers, such as long graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _axes(leaves: Sequence[torch.Tensor], axis: int | None, name: str) -> list[int | None]:
    """Batch axis of each input with as many samples on ``axis`` as the first one that has this axis.

    Raises `WorkloadError` if none has it.
    """
    if axis is None:
        return [None] * len(leaves)
    if axis < 0 or all(leaf.ndim <= axis for leaf in leaves):
        raise WorkloadError(
            f"workload {name}: no input has an axis {axis}: name the axis of the batch, or batch_axis=None"
        )
    size = next(leaf.shape[axis] for leaf in leaves if leaf.ndim > axis)
    return [axis if leaf.ndim > axis and leaf.shape[axis] == size else None for leaf in leaves]


def _several(leaf: torch.Tensor, axis: int | None) -> torch.Tensor:
    if axis is None or leaf.shape[axis] >= _FEWEST:
        return leaf
    return torch.cat([leaf] * _FEWEST, axis)


def _require_importable(kind: type) -> None:
    found: Any = None
    if kind.__module__ != "__main__":
        found = importlib.import_module(kind.__module__)
        for part in kind.__qualname__.split("."):
            found = getattr(found, part, None)
    if found is not kind:
        raise UnsupportedError(
            f"its class {kind.__qualname__} is defined where no other process finds it: put it into a file, such as models.py, "
            "and import it from there"
        )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
