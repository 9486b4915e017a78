"""Base classes of the options of workload schemes as pydantic models, and parsing of a reference's options."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.validation import explain
from mlflow_ngraph.workloads.base import BatchAxis, WorkloadRef


class Options(BaseModel):
    """Base of the options of a scheme."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class NamedOptions(Options):
    """Options for properties of a model that only its users know."""

    label: str | None = None
    """Name in tables; the default comes from the target."""
    family: str | None = None
    """Groups workloads in tables; the default is the scheme."""


class SampledOptions(NamedOptions):
    """Options for models that may be meaningless on random inputs."""

    samples: str | None = None
    """Inputs of the model in place of random values: path of a ``.npz`` file with an array for each input, by its name, or
    ``module:function`` or ``file.py:function`` for a function that returns such a mapping."""
    batch_axis: BatchAxis | None = None
    """The axis that the batch is on: of every input that has it, or by input; ``none`` where there is no batch. Default: the axis that
    is called so, else an open or agreeing axis 0."""


O = TypeVar("O", bound=Options)  # noqa: E741 - reads as "options"


def parse_options(kind: type[O], ref: WorkloadRef) -> O:
    """Parse the options of a reference. Raises `WorkloadError` for an unknown option or a wrong value."""
    try:
        return kind.model_validate(dict(ref.options))
    except ValidationError as error:
        raise WorkloadError(f"workload {ref.scheme}:{ref.target}: {explain(error, kind)}") from None


def canonical(ref: WorkloadRef, options: Options, always: tuple[str, ...] = ()) -> WorkloadRef:
    """Reference with typed options in place of text, without those of default value.

    ``always`` names options that stay, default or not.
    """
    given: dict[str, Any] = options.model_dump(mode="json", exclude_defaults=True)
    return WorkloadRef(ref.scheme, ref.target, {**given, **{name: getattr(options, name) for name in always}})
