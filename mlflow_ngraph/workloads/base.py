"""What a workload is: a reference that anybody can parse, and a model that only a child process builds."""

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
"""What a compiler can start from: a live ``torch.nn.Module``, a ``torch.export`` program, an ONNX file."""

DIGEST = re.compile(r"#[0-9a-f]{8}$")
"""What stands for options that are lists or mappings at the end of a `WorkloadRef`."""

Wrapper = Literal["flat_outputs", "copied_inputs"]
"""What is put around a model whose outputs are not a tensor or a tuple of tensors, or that writes to its inputs."""


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
        """The shape at a batch size."""
        return tuple(batch if size == BATCH else int(size) for size in self.shape)

    def random(self, batch: int, rng: np.random.Generator) -> NDArray[Any]:
        """A batch of distinct random values, as `drawn` says."""
        import numpy as np  # not above: whoever only asks what fits where does not wait for it

        from mlflow_ngraph.workloads import random_inputs

        first = self.samples_first()
        array = random_inputs.random(self.name, self.dtype, first.resolve(batch), self.low, self.high, rng)
        axis = self.axis or 0
        return np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array

    @property
    def drawn(self) -> str:
        """What `random` gives, in words."""
        from mlflow_ngraph.workloads import random_inputs

        return random_inputs.described(self.name, self.dtype, self.samples_first().shape, self.low, self.high)

    @property
    def axis(self) -> int | None:
        """The batch axis; None where there is none."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def samples_first(self) -> TensorSpec:
        """The same with the batch axis as the first one."""
        axis = self.axis
        return replace(self, shape=(BATCH, *self.shape[:axis], *self.shape[axis + 1 :])) if axis else self

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TensorSpec:
        """The inverse of `dataclasses.asdict`, also after a trip through JSON."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})


@dataclass(frozen=True)
class Init:
    """How the parameters of a model come about."""

    seed: int = 0
    pretrained: bool = False
    """Load the published weights, where the workload has them, instead of random ones."""
    calibrate: bool = True
    """Give random networks live residual branches and normalisation statistics, so that parity can fail."""


@dataclass(frozen=True)
class WorkloadRef:
    """A workload as text or as a mapping in a study file; says where the model comes from, builds nothing.

    The text form is ``scheme:target`` with options as a query, for example ``timm:resnet18``,
    ``block:conv?width=64&depth=3`` or ``onnx:models/bert.onnx``. Options that are lists or mappings have no place
    in it; a digest of them follows after ``#``, so that different workloads have different texts.
    """

    scheme: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> WorkloadRef:
        """Read the text form.

        Raises
        ------
        WorkloadError
            There is no scheme, or the text is more than one line.
        """
        if CONTROLS.search(text):
            raise WorkloadError(f"workload {shortened(text)} has line breaks or other control characters in it")
        head, _, query = text.partition("?")
        scheme, colon, target = head.partition(":")
        if not colon or not target:
            raise WorkloadError(f"workload {shortened(text)} has no scheme: write scheme:target, such as timm:resnet18")
        return cls(scheme, target, dict(parse_qsl(query, keep_blank_values=True)))

    @classmethod
    def recorded(cls, text: str) -> WorkloadRef | None:
        """Read what results call a workload, without those options of which it has only a digest; None if it is another text."""
        try:
            return cls.parse(DIGEST.sub("", text))
        except WorkloadError:
            return None

    @property
    def model(self) -> str:
        """The text form without options."""
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
    """What is known about the model behind a workload."""

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
        """Every field, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> WorkloadInfo:
        """The inverse of `as_dict`, also after a trip through JSON."""
        return cls(**{**fields, "inputs": tuple(TensorSpec.from_dict(spec) for spec in fields["inputs"])})


def fixed_batch(inputs: tuple[TensorSpec, ...], named: BatchAxis | None = None) -> int | None:
    """The only batch size that a model with these inputs accepts, or None when one of them has a batch axis.

    Parameters
    ----------
    named : BatchAxis | None
        The axis as the user names it; None takes axis 0.
    """
    if any(BATCH in spec.shape for spec in inputs):
        return None
    sizes = set(_batch_sizes(inputs, named).values())
    return sizes.pop() if len(sizes) == 1 else 1


def batch_question(inputs: tuple[TensorSpec, ...], named: BatchAxis | None = None) -> str:
    """What to ask whoever wants other batch sizes of a model without a batch axis; empty where it has one, or is said to have none.

    Parameters
    ----------
    named : BatchAxis | None
        As in `fixed_batch`.
    """
    if named == "none" or any(BATCH in spec.shape for spec in inputs):
        return ""
    if len(set(_batch_sizes(inputs, named).values())) == 1:
        return ""
    if not inputs:
        return "the model has no inputs, and so no batch: measure batch size 1 only"
    known = ", ".join(f"{spec.name}[{', '.join(map(str, spec.shape))}]" for spec in inputs)
    return f"no batch axis found in {known}: name one, such as batch_axis: 1, or measure batch size 1 only"


def _batch_sizes(inputs: tuple[TensorSpec, ...], named: BatchAxis | None) -> dict[str, int]:
    """The sizes of inputs on the batch axis. What has one axis has room for samples or for what they are made of, so it has to be named."""
    axes = {spec.name: axis_of(spec.name, named) for spec in inputs}
    return {
        spec.name: int(spec.shape[axis])
        for spec in inputs
        if (axis := axes[spec.name]) is not None
        and len(spec.shape) > max(axis, named is None)
        and spec.shape[axis] != 0
    }


def axis_of(name: str, named: BatchAxis | None) -> int | None:
    """The batch axis of an input, as the user names it; None where it has none."""
    axis = named.get(name, "none") if isinstance(named, dict) else 0 if named is None else named
    return None if axis == "none" else axis


class Workload(ABC):
    """A model with an input specification. Constructed in the parent, built only in a child process.

    The constructor validates ``ref.options`` without importing torch, and raises `WorkloadError` with
    the allowed values.
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
        """A short name that is unique enough for a table."""

    @property
    @abstractmethod
    def family(self) -> str:
        """Groups workloads in tables."""

    @property
    def batch_axis(self) -> BatchAxis | None:
        """The axis that the batch is on, as the user names it."""
        return None

    @property
    def known(self) -> WorkloadInfo | None:
        """What is known without building the model, or None. A known workload needs no `check`."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Cheaply find out whether the model can be built (child process).

        Raises
        ------
        WorkloadError
            It cannot; says why and what exists.
        """

    @abstractmethod
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the model (child process)."""

    def unbounded(self) -> set[str]:
        """The inputs whose ranges the model itself may tell, because nobody has given them."""
        return set()

    def samples(self) -> list[NDArray[Any]] | None:
        """Inputs to run the model on, an array for each with any number of samples (child process).

        None, the default, stands for random values.

        Raises
        ------
        WorkloadError
            They do not suit `inputs`.
        """
        return None

    @abstractmethod
    def module(self) -> torch.nn.Module:
        """Build the model in evaluation mode with its parameters in place (child process).

        Raises
        ------
        UnsupportedError
            The source cannot be expressed as a PyTorch module; the message says which operator.
        """

    def skeleton(self) -> torch.nn.Module:
        """As `module`, as fast as possible and with any parameters: the caller puts saved ones in their place."""
        return self.module()

    def localise(self, directory: Path) -> Workload:
        """The same workload, read from a copy inside ``directory`` that is made if it is missing (child process).

        So a file that changes during a study cannot change what is measured. A workload without files is itself.
        """
        return self

    def onnx_file(self) -> Path | None:
        """The ONNX file that the model comes from, or None."""
        return None

    def file_bytes(self) -> int | None:
        """The size of the files that the model comes from (child process); None where it comes from no file."""
        return None
