"""Workload of a Python function that returns a ``torch.nn.Module``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from mlflow_ngraph import credentials
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.workloads import own_code
from mlflow_ngraph.workloads.base import Init, TensorSpec, WorkloadRef
from mlflow_ngraph.workloads.file import SampledWorkload
from mlflow_ngraph.workloads.options import SampledOptions, canonical, parse_options
from mlflow_ngraph.workloads.specs import Inputs, named_specs, require_axes

if TYPE_CHECKING:
    import torch

_SET_BY_IMPORT: dict[str, list[Any]] = {}
"""PyTorch's settings after the import of a user's module, which happens once in a process."""


class TorchOptions(SampledOptions):
    """Options of ``torch:``."""

    inputs: Inputs = Field(min_length=1)
    """The inputs: a list, passed by position, or a mapping from name to input, passed by keyword."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the callable; ``{env: NAME}`` stands for the value of a variable of the environment."""
    calibrate: bool = False
    """Replace the parameters as for the package's own random networks; only for a model without trained weights."""

    @model_validator(mode="after")
    def _variables_are_secret(self) -> TorchOptions:
        for name in filter(None, map(_variable, self.kwargs.values())):
            credentials.name_variable(name)
        return self


class TorchWorkload(SampledWorkload):
    """``torch:<package.module>:<callable>``."""

    scheme: ClassVar[str] = "torch"
    _options: TorchOptions

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self._module_name, colon, self._attribute = ref.target.partition(":")
        if not colon or not self._module_name or not self._attribute:
            raise WorkloadError(f"workload torch:{ref.target}: write torch:package.module:callable")
        if self._module_name.endswith(".py"):
            module = self._module_name.removesuffix(".py").strip("./").replace("/", ".")
            raise WorkloadError(
                f"workload torch:{ref.target}: name the module, not its file: torch:{module}:{self._attribute}"
            )
        if self._module_name == "__main__":
            raise WorkloadError(
                f"workload torch:{ref.target} lives in the program or notebook that is running, where no other process finds "
                f"it: put it into a file, such as models.py, and write torch:models:{self._attribute}"
            )
        if "inputs" not in ref.options:
            raise WorkloadError(
                f"workload torch:{ref.target} needs its inputs, in the options of the study file, "
                "such as inputs: [{shape: [batch, 3, 224, 224]}]"
            )
        self._options = parse_options(TorchOptions, ref)
        require_axes(self._options.batch_axis, self.inputs(), f"torch:{ref.target}")
        super().__init__(canonical(ref, self._options), init)

    @property
    def label(self) -> str:
        return self._options.label or self._attribute

    def check(self) -> None:
        self._factory()
        self.samples()

    def inputs(self) -> tuple[TensorSpec, ...]:
        return named_specs(self._options.inputs)

    def unbounded(self) -> set[str]:
        given = self._options.inputs
        entries = given.values() if isinstance(given, dict) else given
        return {spec.name for spec, entry in zip(self.inputs(), entries, strict=True) if entry.high is None}

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.initialise import calibrate

        model = self.skeleton()
        if self._options.calibrate and self.init.calibrate:
            calibrate(model, self.inputs(), self.init.seed, str(self.ref), self.samples())
        return model

    def skeleton(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.calling import StructuredCall, called_by_name
        from mlflow_ngraph.workloads.initialise import seeded
        from mlflow_ngraph.workloads.unwrapping import materialise, require_values

        with seeded(self.init.seed):
            self._factory()  # what its import draws, which happens once, is no part of what is drawn each time
        # Lazy layers draw their weights when they are called first.
        with seeded(self.init.seed):
            model = self._made()
            if isinstance(self._options.inputs, dict) and not isinstance(model, StructuredCall):
                model = called_by_name(model, list(self._options.inputs))
            model.eval()
            # Only the shapes matter, and the file need not be where an engine is loaded.
            there = self._options.samples is not None and Path(self._options.samples).is_file()
            materialise(model, self.inputs(), str(self.ref), self.samples() if there else None)
        require_values(model, str(self.ref))
        return model

    def _made(self) -> torch.nn.Module:
        """Call the function, convert its result to a callable module, and undo its side effects."""
        import torch

        from mlflow_ngraph.workloads import side_effects
        from mlflow_ngraph.workloads.unwrapping import unwrapped

        factory, given = self._factory(), dict(self._keywords())
        with side_effects.side_effects_undone(), self._told(hint=lambda: _lacking(factory, given)):
            side_effects.restore(_SET_BY_IMPORT.get(self._module_name, side_effects.settings()))
            # One module for all would keep what it has seen for whoever has it next.
            made = deepcopy(factory) if isinstance(factory, torch.nn.Module) else factory(**given)
        if isinstance(made, torch.export.ExportedProgram):
            return self._called(made)
        if not isinstance(made, torch.nn.Module):
            raise WorkloadError(f"workload {self._name} returned {_returned(made)}")
        return unwrapped(made)

    def _keywords(self) -> Iterator[tuple[str, Any]]:
        for keyword, value in self._options.kwargs.items():
            name = _variable(value)
            if name is not None and name not in os.environ:
                raise WorkloadError(f"workload {self._name}: kwargs.{keyword}: this process has no variable {name}")
            yield keyword, value if name is None else os.environ[name]

    def _called(self, program: torch.export.ExportedProgram) -> torch.nn.Module:
        from mlflow_ngraph.workloads.calling import called_flat

        names, given = list(program.graph_signature.user_inputs), [spec.name for spec in self.inputs()]
        if isinstance(self._options.inputs, dict) and names != given:
            raise WorkloadError(
                f"workload {self._name} returned a program with the inputs {', '.join(map(str, names))}: name them in this "
                f"order, not {', '.join(given)}"
            )
        return called_flat(program)

    @property
    def _name(self) -> str:
        return f"torch:{self.ref.target}"

    def _factory(self) -> Callable[..., Any]:
        """Import the function, also from the current directory."""
        own_code.add_current_directory()
        imported = self._imported()
        for part in self._attribute.split("."):
            if not hasattr(imported, part):
                raise WorkloadError(f"workload {self._name}: {self._module_name} has no {self._attribute!r}")
            imported = getattr(imported, part)
        if not callable(imported):
            raise WorkloadError(f"workload {self._name}: {self._attribute} is {type(imported).__name__}, not callable")
        factory: Callable[..., Any] = imported
        return factory

    def _imported(self) -> Any:
        """Import the module; PyTorch settings of its import stay for its functions."""
        if self._module_name in sys.modules:
            return sys.modules[self._module_name]
        from mlflow_ngraph.workloads import side_effects

        with side_effects.settings_restored(), self._told(f": importing {self._module_name}"):
            try:
                imported = importlib.import_module(self._module_name)
            except ModuleNotFoundError as error:
                raise WorkloadError(
                    f"workload {self._name}: no module {error.name!r}: install it, or start in its directory"
                ) from error
            _SET_BY_IMPORT[self._module_name] = side_effects.settings()
        return imported

    @contextmanager
    def _told(self, doing: str = "", hint: Callable[[], str] = str) -> Iterator[None]:
        """Report errors and exits of the user's code in one line."""
        try:
            yield
        except WorkloadError:
            raise
        except SystemExit as error:
            raise WorkloadError(f"workload {self._name}{doing}: {one_line(error)}") from error
        except Exception as error:  # whatever it raises
            reason = " ".join(str(error).split())
            raise WorkloadError(
                f"workload {self._name}{doing} raised {type(error).__name__}: {reason}{hint()}"
            ) from error


def _variable(value: Any) -> str | None:
    """The variable of the environment that a keyword names; None for any other value."""
    name = value.get("env") if isinstance(value, Mapping) and len(value) == 1 else None
    return name if isinstance(name, str) else None


def _lacking(factory: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Advice about missing or unexpected arguments of a function; empty for any other error."""
    try:
        signature(factory).bind(**given)
    except TypeError:
        return ": its arguments stand in the options of the study file, such as kwargs: {width: 2}"
    except ValueError:  # it does not say what it takes
        return ""
    return ""


def _returned(made: object) -> str:
    """Describe a result that is no module, with advice."""
    import torch

    kind = f"{type(made).__name__}, not a torch.nn.Module"
    if made is None:
        return f"{kind}: a return may be missing"
    if isinstance(made, type):
        return f"the class {made.__name__}, not a torch.nn.Module: return an object of it"
    if isinstance(made, tuple | list) and any(isinstance(part, torch.nn.Module) for part in made):
        return f"{kind}: return the module alone; its inputs stand in the options of the study file"
    if isinstance(made, Mapping) and any(isinstance(part, torch.Tensor) for part in made.values()):
        return f"{kind}: return the model with these weights loaded into it"
    return kind
