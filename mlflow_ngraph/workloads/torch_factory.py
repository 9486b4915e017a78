"""A model from a Python function that returns a ``torch.nn.Module``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads.base import Init, TensorSpec, Workload, WorkloadRef
from mlflow_ngraph.workloads.options import SampledOptions, canonical, parse_options
from mlflow_ngraph.workloads.specs import Inputs, named_specs

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


class TorchOptions(SampledOptions):
    """Options of ``torch:``."""

    inputs: Inputs = Field(min_length=1)
    """The inputs: a list, passed by position, or a mapping from name to input, passed by keyword."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the callable."""
    calibrate: bool = False
    """Replace the parameters as for the package's own random networks; only for a model without trained weights."""


class TorchWorkload(Workload):
    """``torch:<package.module>:<callable>``."""

    scheme: ClassVar[str] = "torch"

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._module_name, colon, self._attribute = ref.target.partition(":")
        if not colon or not self._module_name or not self._attribute:
            raise WorkloadError(f"workload torch:{ref.target}: write torch:package.module:callable")
        if "inputs" not in ref.options:
            raise WorkloadError(
                f"workload torch:{ref.target} needs its inputs, in the options of the study file, "
                "such as inputs: [{shape: [batch, 3, 224, 224]}]"
            )
        self._options = parse_options(TorchOptions, ref)
        super().__init__(canonical(ref, self._options), init)

    @property
    def label(self) -> str:
        return self._options.label or self._attribute

    @property
    def family(self) -> str:
        return self._options.family or self.scheme

    def check(self) -> None:
        self._factory()
        self.samples()

    def inputs(self) -> tuple[TensorSpec, ...]:
        return named_specs(self._options.inputs)

    def samples(self) -> list[NDArray[Any]] | None:
        from mlflow_ngraph.workloads import samples

        return samples.given(self._options.samples, self.inputs(), str(self.ref))

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.initialise import calibrate

        model = self.skeleton()
        if self._options.calibrate and self.init.calibrate:
            calibrate(model, self.inputs(), self.init.seed, str(self.ref), self.samples())
        return model

    def skeleton(self) -> torch.nn.Module:
        import torch

        from mlflow_ngraph.workloads.calling import KeywordCall
        from mlflow_ngraph.workloads.initialise import seeded

        factory = self._factory()
        try:
            with seeded(self.init.seed):
                model = factory(**self._options.kwargs)
        except Exception as error:  # whatever the caller's code raises
            reason = " ".join(str(error).split())
            raise WorkloadError(f"workload {self._name} raised {type(error).__name__}: {reason}") from error
        if not isinstance(model, torch.nn.Module):
            raise WorkloadError(f"workload {self._name} returned {type(model).__name__}, not a torch.nn.Module")
        if isinstance(self._options.inputs, dict):
            model = KeywordCall(model, list(self._options.inputs))
        return model.eval()

    @property
    def _name(self) -> str:
        return f"torch:{self.ref.target}"

    def _factory(self) -> Callable[..., Any]:
        """Import the callable, also from the current directory."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            imported: Any = importlib.import_module(self._module_name)
        except ModuleNotFoundError as error:
            raise WorkloadError(
                f"workload {self._name}: no module {error.name!r}: install it, or start in its directory"
            ) from error
        except Exception as error:  # whatever the module does at import
            reason = " ".join(str(error).split())
            raise WorkloadError(
                f"workload {self._name}: importing {self._module_name} raised {type(error).__name__}: {reason}"
            ) from error
        for part in self._attribute.split("."):
            if not hasattr(imported, part):
                raise WorkloadError(f"workload {self._name}: {self._module_name} has no {self._attribute!r}")
            imported = getattr(imported, part)
        if not callable(imported):
            raise WorkloadError(f"workload {self._name}: {self._attribute} is {type(imported).__name__}, not callable")
        factory: Callable[..., Any] = imported
        return factory
