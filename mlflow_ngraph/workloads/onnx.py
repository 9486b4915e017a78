"""Workload of an ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from mlflow_ngraph.entry_points import CONVERTER, load_plugin
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.workloads.base import TensorSpec, fixed_batch
from mlflow_ngraph.workloads.file import FileWorkload, copied, linked
from mlflow_ngraph.workloads.samples import drawn
from mlflow_ngraph.workloads.specs import resolve

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_COPY = Path("source")
"""Directory of the copy within the materials; it holds nothing but the file and its external data."""


def convert(path: Path) -> torch.nn.Module:
    """The graph of an ONNX file as a PyTorch module, by the plugin for it.

    Raises `UnsupportedError` for what PyTorch has no operator for, and `DependencyError` without the plugin.
    """
    module: torch.nn.Module = _converter()(path)
    return module


def _converter() -> Callable[[Path], torch.nn.Module]:
    wanted = "running an ONNX file in PyTorch"
    return cast("Callable[[Path], torch.nn.Module]", load_plugin(CONVERTER, "mlflow_ngraph.converters", "onnx", wanted))


class OnnxWorkload(FileWorkload):
    """``onnx:<path>``."""

    scheme: ClassVar[str] = "onnx"

    def check(self) -> None:
        _converter()  # without it no cell could be compared with PyTorch
        super().check()

    def inputs(self) -> tuple[TensorSpec, ...]:
        from mlflow_ngraph.workloads import onnx_file

        declared = onnx_file.declared_inputs(onnx_file.read(self._path), self._path)
        return resolve(declared, self._options, str(self.ref))

    def output_names(self) -> list[str]:
        from mlflow_ngraph.workloads import onnx_file

        return [value.name for value in onnx_file.read(self._path).graph.output]

    def module(self) -> torch.nn.Module:
        """The graph as a module that runs it node by node; raises `UnsupportedError` where PyTorch cannot."""
        inputs = self.inputs()
        module = convert(self._path)
        _try(module, inputs, self.samples())
        return module

    def skeleton(self) -> torch.nn.Module:
        return convert(self._path)

    def localise(self, directory: Path) -> OnnxWorkload:
        from mlflow_ngraph.workloads import onnx_file

        local = OnnxWorkload(self.ref, self.init)
        local._path = directory / _COPY / self._path.name
        if not local._path.is_file():
            self.inputs()  # refuses a file that is none
            put = linked if self._own else copied
            onnx_file.copy(self._path, local._path, self._options.dims, put)
        local._own = True
        local._options = self._options.model_copy(update={"dims": {}})  # the copy has them
        return local

    def onnx_file(self) -> Path:
        return self._path

    def file_bytes(self) -> int:
        from mlflow_ngraph.workloads import onnx_file

        outside = onnx_file.external_files(onnx_file.read(self._path))
        return sum(file.stat().st_size for file in (self._path, *(self._path.parent / name for name in outside)))


def _try(module: torch.nn.Module, inputs: tuple[TensorSpec, ...], samples: list[NDArray[Any]] | None) -> None:
    """Run the module once, because unsupported attributes show only then."""
    import torch

    from mlflow_ngraph.workloads.calling import tensors

    example = drawn(inputs, samples, fixed_batch(inputs) or 1, np.random.default_rng(0))
    try:
        with torch.inference_mode():
            module(*tensors(example))
    except UnsupportedError:
        raise
    except Exception as error:  # whatever torch says about a graph that it does not run
        raise UnsupportedError(f"PyTorch baseline cannot run the ONNX graph: {one_line(error)}") from error
