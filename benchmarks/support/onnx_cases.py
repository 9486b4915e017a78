"""The conformance cases that the package onnx brings, and one of them through one compiler, by the package's own ways."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.test import loader
from onnx.backend.test.runner import Runner

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import CellError, NGraphError
from mlflow_ngraph.workloads.base import BATCH, Format, Init, TensorSpec, Workload, WorkloadRef, fixed_batch
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create

from .onnx_page import BARE, NO_TENSOR

GROUPS = ("light", "simple", "pytorch-operator", "pytorch-converted", "node")
_ROUNDINGS = 8
"""Of the largest element, in units of the last place of an output's own type."""
_LIGHT_TOLERANCE = 1e-3, 1e-6

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs that the standard, or whoever exported it, says it has."""

    name: str
    group: str
    model: onnx.ModelProto
    data: Callable[[], tuple[list[Any], list[Any]]]
    """Inputs and outputs, read when they are needed."""
    rtol: float
    atol: float

    @property
    def operators(self) -> list[str]:
        """The operators of its nodes, without repetition."""
        return list(dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in self.model.graph.node))

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that are no constants."""
        constants = {tensor.name for tensor in self.model.graph.initializer}
        return [value.name for value in self.model.graph.input if value.name not in constants]

    def workload(self, directory: Path) -> tuple[Workload, int]:
        """The case as a workload with its inputs as samples, and the batch size that these have.

        Parameters
        ----------
        directory: where its files are written.
        """
        directory.mkdir(exist_ok=True)
        model, samples = directory / "model.onnx", directory / "given.npz"
        onnx.save(self.model, str(model))
        arrays = dict(zip(self.inputs, self.data()[0], strict=True))
        np.savez(samples, **arrays)
        options = {"samples": str(samples), "dims": self._open_sizes(arrays)} if arrays else {}
        workload = create(WorkloadRef("onnx", str(model), options), Init())
        return workload, workload_batch(workload.inputs(), arrays)

    def _open_sizes(self, arrays: dict[str, NDArray[Any]]) -> dict[str, int]:
        """Sizes of axes that the case leaves open, but for a batch axis with something in it."""
        return {
            f"{value.name}[{axis}]": arrays[value.name].shape[axis]
            for value in self.model.graph.input
            if value.name in arrays
            for axis, dimension in enumerate(value.type.tensor_type.shape.dim)
            if not dimension.HasField("dim_value") and (axis > 0 or arrays[value.name].shape[axis] == 0)
        }

    @property
    def no_tensor(self) -> str | None:
        """The kind of the first input or output that is none of numbers or truth values."""
        for value in (*self.model.graph.input, *self.model.graph.output):
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                return str(kind).removesuffix("_type")
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                return "string"
        return None


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    verdict: str
    """``ok``, ``unsupported``, ``wrong``, ``failed`` or ``not a tensor``."""
    reason: str = ""


def cases(groups: Sequence[str] = GROUPS) -> Iterator[Case]:
    """Every case of some groups."""
    for group in groups:
        if group == "light":
            yield from _light()
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cases compute with infinities
            found = loader.load_model_tests(kind=group)
        for test in sorted(found, key=lambda test: test.name):
            if test.model_dir is None:
                data = [_given(inputs, outputs) for inputs, outputs in test.data_sets]
                model = test.model
            else:
                model = onnx.load(str(Path(test.model_dir, "model.onnx")))
                data = [_read(model, folder) for folder in sorted(Path(test.model_dir).glob("test_data_set_*"))]
            for number, read in enumerate(data):
                name = test.name if number == 0 else f"{test.name}#{number}"
                yield Case(name, group, model, read, test.rtol, test.atol)


def _light() -> Iterator[Case]:
    """Whole networks with weights of one value; their outputs are shipped, their inputs made by a rule."""
    for path in sorted(Path(loader.DATA_DIR, "light").glob("*.onnx")):
        model = onnx.load(str(path))
        constants = {tensor.name for tensor in model.graph.initializer}

        def read(path: Path = path, model: Any = model, constants: set[str] = constants) -> Any:
            inputs = [
                Runner.generate_dummy_data(value, seed=0, name="", random=False)
                for value in model.graph.input
                if value.name not in constants
            ]
            shipped = path.with_name(f"{path.stem}_output_0.pb").read_bytes()
            return inputs, [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(shipped))]

        yield Case(path.stem, "light", model, read, *_LIGHT_TOLERANCE)


def _given(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], tuple[list[Any], list[Any]]]:
    return lambda: ([_array(value) for value in inputs], [_array(value) for value in outputs])


def _read(model: onnx.ModelProto, folder: Path) -> Callable[[], tuple[list[Any], list[Any]]]:
    def tensors(kind: str) -> list[Any]:
        files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
        return [_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files]

    return lambda: (tensors("input"), tensors("output"))


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


class Attempt:
    """One case, prepared once for all compilers that it is put through.

    Parameters
    ----------
    directory: a folder of the case's own.
    formats: what the compilers start from.
    """

    def __init__(self, case: Case, directory: Path, formats: Sequence[Format]) -> None:
        self._case = case
        self._directory = directory
        self._formats = formats

    def through(self, compiler: str) -> Outcome:
        """Compile, load, run, and compare with the outputs of the case."""
        if self._case.no_tensor is not None:
            return Outcome(NO_TENSOR, self._case.no_tensor)
        try:
            outputs = self._bare(compiler) if compiler in BARE else self.outputs(compiler)
        except CellError as error:
            return Outcome(error.verdict.value, str(error))
        except NGraphError as error:
            return Outcome("unsupported", self._reason(error))
        except Exception as error:  # noqa: BLE001 - a runtime raises anything
            return Outcome("failed", one_line(error))
        problem = difference(outputs, self._case.data()[1], self._case)
        return Outcome("wrong", problem) if problem else Outcome("ok")

    def _reason(self, error: Exception) -> str:
        """What the package says, without the names of this case's folder."""
        return re.sub(r"workload onnx:\S+?:? ", "", str(error).replace(f"{self._directory}{os.sep}", ""))

    def _bare(self, runtime: str) -> Arrays:
        """What a runtime gives by itself."""
        model, inputs = self._case.model.SerializeToString(), self._case.data()[0]
        if BARE[runtime] == "openvino":
            from mlflow_ngraph.compilers.openvino.library import library

            core = library().Core()
            request = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            return [np.array(value) for value in request(inputs).values()]
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model, options)
        names = [node.name for node in session.get_inputs()]
        return session.run(None, dict(zip(names, inputs, strict=True)))  # type: ignore[no-any-return]

    def outputs(self, compiler: str) -> Arrays:
        """What an engine gives that was compiled, saved and loaded for the case."""
        source = self._source
        only = source.info.fixed_batch
        batch = source.materials.batch_sizes[0] if only is None else only
        kind = COMPILERS.get(compiler)
        adapter, target = kind(kind.flags_type()), Target(threads=1)
        with tempfile.TemporaryDirectory(dir=self._directory) as engines:
            adapter.compile(source, [batch], target, Path(engines), Workbench(self._directory / "work"))
            engine = adapter.load(Path(engines), batch, target)
            try:
                bound = engine.bind(source.example(batch))
                bound.call()
                return bound.outputs()
            finally:
                engine.close()

    @cached_property
    def _source(self) -> Source:
        """The materials of the case, with its inputs as samples."""
        workload, batch = self._case.workload(self._directory)
        materials = self._directory / "materials"
        prepare(workload, materials, batch_sizes=[batch], formats=self._formats, seed=0)
        return Source(materials)


def workload_batch(inputs: Sequence[TensorSpec], arrays: Mapping[str, NDArray[Any]]) -> int:
    """The batch size that is fixed, or the number of samples that a case has."""
    return fixed_batch(tuple(inputs)) or next(
        arrays[spec.name].shape[spec.shape.index(BATCH)] for spec in inputs if BATCH in spec.shape
    )


def difference(outputs: Arrays, expected: Arrays, case: Case) -> str | None:
    """What is not as the case says, or None."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, not {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"output {index} is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        problem = _of_one(ours, theirs, case)
        if problem:
            return f"output {index} {problem}"
    return None


def _of_one(ours: NDArray[Any], theirs: NDArray[Any], case: Case) -> str | None:
    if theirs.dtype.kind in "biu":
        share = float((ours != theirs).mean()) if theirs.size else 0.0
        return f"differs in {100 * share:.3g} % of its elements" if share else None
    wide, wanted = ours.astype(np.float64), theirs.astype(np.float64)
    finite = wanted[np.isfinite(wanted)]
    largest = np.abs(finite).max(initial=0.0)
    # The absolute tolerance of the cases is finer than what a sum in the output's own type can hold.
    atol = max(case.atol, _ROUNDINGS * float(np.finfo(theirs.dtype).eps) * largest)
    if np.allclose(wide, wanted, rtol=case.rtol, atol=atol, equal_nan=True):
        return None
    if not np.array_equal(np.isfinite(wide), np.isfinite(wanted)):
        return "is not finite where it should be, or the other way round"
    error = np.abs(wide - wanted)[np.isfinite(wanted)].max(initial=0.0)
    return f"differs by {error:.1e}; its largest element is {largest:.1e}"
