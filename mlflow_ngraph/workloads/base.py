"""Abstract base of workloads, their references as text, and descriptions of inputs, initialisation and models."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlencode

from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph.text import CONTROLS, shortened

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

BATCH = "batch"
"""The symbol that marks the batch axis in the shape of a `TensorSpec`."""

BatchAxis = int | Literal["none"] | dict[str, int | Literal["none"]]
"""The axis that the batch is on: of every input that has it, or by input; ``none`` where there is no batch."""

Format = Literal["module", "exported", "onnx"]
"""Formats that a compiler can start from: a live ``torch.nn.Module``, a ``torch.export`` program, an ONNX file."""

DIGEST = re.compile(r"#[0-9a-f]{8}$")
"""Digest of options that are lists or mappings, at the end of a `WorkloadRef`."""
CONTENT = re.compile(r"@(?:unknown|[0-9a-f]{8,64})$")
"""Digest of a model, or its beginning, behind a reference or label that means several models."""

DRAWN = ("timm:", "block:")
"""Beginnings of references whose weights are drawn by this package, unless published ones are asked for."""

Wrapper = Literal["flat_outputs", "copied_inputs", "gradients"]
"""Wrappers of a model whose outputs are not a tensor or a tuple of tensors, that writes to its inputs, or that computes gradients."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of one input or output."""

    name: str
    dtype: str
    """A NumPy dtype name, such as ``float32`` or ``int64``."""
    shape: tuple[int | str, ...]
    """Sizes; the string ``"batch"`` stands for the batch axis."""
    low: int = 0
    """Smallest value of an integer input."""
    high: int = 2
    """One more than the largest value of an integer input, such as the size of a vocabulary."""

    def resolve(self, batch: int) -> tuple[int, ...]:
        return tuple(batch if size == BATCH else int(size) for size in self.shape)

    def random(self, batch: int, rng: np.random.Generator) -> NDArray[Any]:
        """Draw a batch of distinct values, as `drawn` describes."""
        import numpy as np  # not above: whoever only asks what fits where does not wait for it

        from mlflow_ngraph.workloads import random_inputs

        first = self.samples_first()
        array = random_inputs.random(self.name, self.dtype, first.resolve(batch), self.low, self.high, rng)
        axis = self.axis or 0
        return np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array

    @property
    def drawn(self) -> str:
        """Describe the values of `random`."""
        from mlflow_ngraph.workloads import random_inputs

        return random_inputs.described(self.name, self.dtype, self.samples_first().shape, self.low, self.high)

    @property
    def axis(self) -> int | None:
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def samples_first(self) -> TensorSpec:
        """Move the batch axis to the front."""
        axis = self.axis
        return replace(self, shape=(BATCH, *self.shape[:axis], *self.shape[axis + 1 :])) if axis else self

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TensorSpec:
        """Inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})


@dataclass(frozen=True)
class Init:
    """Source of a model's parameters."""

    seed: int = 0
    pretrained: bool = False
    """Load the published weights, where the workload has them, instead of random ones."""
    calibrate: bool = True
    """Give random networks live residual branches and normalisation statistics, so that parity can fail."""


@dataclass(frozen=True)
class WorkloadRef:
    """Reference to a workload, as text or as a mapping in a study file.

    The text form is ``scheme:target`` with options as a query, for example ``timm:resnet18``,
    ``block:conv?width=64&depth=3`` or ``onnx:models/bert.onnx``. Options that are lists or mappings are replaced by a
    digest after ``#``, so that different workloads have different texts.
    """

    scheme: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> WorkloadRef:
        """Parse the text form. Raises `WorkloadError` if there is no scheme, or the text has several lines."""
        if CONTROLS.search(text):
            raise WorkloadError(f"workload {shortened(text)} has line breaks or other control characters in it")
        head, _, query = text.partition("?")
        scheme, colon, target = head.partition(":")
        if not colon or not target:
            lacks = "target" if colon else "scheme"
            raise WorkloadError(
                f"workload {shortened(text)} has no {lacks}: write scheme:target, such as timm:resnet18"
            )
        pairs = parse_qsl(query, keep_blank_values=True)
        if len(options := dict(pairs)) < len(pairs):
            raise WorkloadError(f"workload {shortened(text)} has an option twice")
        return cls(scheme, target, options)

    @classmethod
    def recorded(cls, text: str) -> WorkloadRef | None:
        """Parse a workload's text in results, without digests of options and of the model; None for any other text."""
        try:
            return cls.parse(DIGEST.sub("", CONTENT.sub("", text)))
        except WorkloadError:
            return None

    @property
    def model(self) -> str:
        """Text form without options."""
        return f"{self.scheme}:{self.target}"

    def __str__(self) -> str:
        plain = {key: _plain(value) for key, value in sorted(self.options.items()) if not _nested(value)}
        nested = {key: value for key, value in self.options.items() if _nested(value)}
        text = self.model + (f"?{urlencode(plain)}" if plain else "")
        if not nested:
            return text
        return f"{text}#{hashlib.sha256(json.dumps(nested, sort_keys=True).encode()).hexdigest()[:8]}"

    def __hash__(self) -> int:
        return hash(str(self))


def _nested(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple))


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


@dataclass(frozen=True)
class WorkloadInfo:
    """Properties of the model behind a workload."""

    ref: str
    label: str
    """A short name that is unique enough for a table, such as ``ResNet-18``."""
    family: str
    """Groups workloads in tables, such as ``ResNets``, ``DeiTs`` or ``conv-block``."""
    inputs: tuple[TensorSpec, ...]
    parameters: int | None = None
    paper_macs: int | None = None
    """Multiply-accumulates of one sample as the paper counts them: without attention products, and each linear
    layer once a sample."""
    true_macs: int | None = None
    """Multiply-accumulates of one sample, attention products and every token included."""
    fixed_batch: int | None = None
    """The only batch size the model accepts, or None."""
    style: str = ""
    """``Convolutional``, ``Transformer`` or ``Hybrid`` for the models and blocks of the paper."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> WorkloadInfo:
        """Inverse of `as_dict`, also after a round trip through JSON."""
        return cls(**{**fields, "inputs": tuple(TensorSpec.from_dict(spec) for spec in fields["inputs"])})


def fixed_batch(inputs: tuple[TensorSpec, ...], named: BatchAxis | None = None) -> int | None:
    """Only batch size of a model with these inputs, or None when an input has a batch axis.

    The batch axis is ``named`` by the user, else it is axis 0.
    """
    if any(BATCH in spec.shape for spec in inputs):
        return None
    sizes = set(_batch_sizes(inputs, named).values())
    return sizes.pop() if len(sizes) == 1 else 1


def batch_question(inputs: tuple[TensorSpec, ...], named: BatchAxis | None = None) -> str:
    """Ask for the batch axis of a model that seems to have none; empty where it is known."""
    if named == "none" or any(BATCH in spec.shape for spec in inputs):
        return ""
    if len(set(_batch_sizes(inputs, named).values())) == 1:
        return ""
    known = ", ".join(f"{spec.name}[{', '.join(map(str, spec.shape))}]" for spec in inputs)
    return f"no batch axis found in {known}: name one, such as batch_axis: 1, or measure batch size 1 only"


def _batch_sizes(inputs: tuple[TensorSpec, ...], named: BatchAxis | None) -> dict[str, int]:
    """Sizes of the inputs on the batch axis. The only axis of an input may hold samples or not, so it has to be named."""
    axes = {spec.name: axis_of(spec.name, named) for spec in inputs}
    return {
        spec.name: int(spec.shape[axis])
        for spec in inputs
        if (axis := axes[spec.name]) is not None
        and len(spec.shape) > max(axis, named is None)
        and spec.shape[axis] != 0
    }


def axis_of(name: str, named: BatchAxis | None) -> int | None:
    """Batch axis of an input, as the user names it; None where it has none."""
    axis = named.get(name, "none") if isinstance(named, dict) else 0 if named is None else named
    return None if axis == "none" else axis


class Workload(ABC):
    """A model with an input specification. Constructed in the parent, built only in a child process.

    The constructor validates ``ref.options`` without importing torch, and raises `WorkloadError` with the allowed
    values.
    """

    scheme: ClassVar[str]
    catalogue: ClassVar[str | None] = None
    """The distribution whose release alone decides what `check` finds and `inputs` says; None where a file does, or
    somebody's code."""

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        self.ref = ref
        self.init = init

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name for tables, mostly unique."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Group of the workload in tables."""

    @property
    def batch_axis(self) -> BatchAxis | None:
        return None

    @property
    def known(self) -> WorkloadInfo | None:
        """Properties that are known without building the model, or None. A known workload needs no `check`."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Check cheaply that the model can be built (child process).

        Raises `WorkloadError` if it cannot; lists the alternatives.
        """

    @abstractmethod
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs of the model (child process)."""

    def output_names(self) -> list[str]:
        """Names that the source gives the outputs (child process); empty where it gives none."""
        return []

    def unbounded(self) -> set[str]:
        """Names of inputs without a given range, which the model may reveal."""
        return set()

    def samples(self) -> list[NDArray[Any]] | None:
        """Arrays to run the model on, one for each input with any number of samples (child process).

        None, the default, stands for random values.

        Raises `WorkloadError` if they do not fit `inputs`.
        """
        return None

    @abstractmethod
    def module(self) -> torch.nn.Module:
        """Build the model in evaluation mode with its parameters in place (child process).

        Raises `UnsupportedError` for a source that PyTorch cannot express, and names the operator.
        """

    def skeleton(self) -> torch.nn.Module:
        """Build the module as fast as possible, with any parameters: saved ones replace them."""
        return self.module()

    def localise(self, directory: Path) -> Workload:
        """Copy the workload's files into ``directory``, unless they are there, and return the local workload (child
        process).

        So a file that changes during a study cannot change the measured model. A workload without files is itself.
        """
        return self

    def onnx_file(self) -> Path | None:
        return None

    def file_bytes(self) -> int | None:
        """Size of the model's files (child process); None where it comes from no file."""
        return None
