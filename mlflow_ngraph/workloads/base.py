"""What a workload is: a reference that anybody can parse, and a model that only a child process builds."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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

Format = Literal["module", "exported", "onnx"]
"""What a compiler can start from: a live ``torch.nn.Module``, a ``torch.export`` program, an ONNX file."""

_DIGEST = re.compile(r"#[0-9a-f]{8}$")
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
        """A batch of distinct random values: standard normal, uniform integers in [low, high), or fair booleans."""
        import numpy as np  # not above: whoever only asks what fits where does not wait for it

        shape, dtype = self.resolve(batch), np.dtype(self.dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iu":
            return rng.integers(self.low, self.high, shape, dtype=np.int64).astype(dtype)
        if dtype == np.float32:
            return rng.standard_normal(shape, dtype=np.float32)
        return rng.standard_normal(shape).astype(dtype)

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
            return cls.parse(_DIGEST.sub("", text))
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


def fixed_batch(inputs: tuple[TensorSpec, ...]) -> int | None:
    """The only batch size that a model with these inputs accepts, or None when one of them has a batch axis."""
    if any(BATCH in spec.shape for spec in inputs):
        return None
    return next((int(spec.shape[0]) for spec in inputs if spec.shape and spec.shape[0] != 0), 1)


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
