"""Workloads of the two stackable blocks of the paper's table 5, with width and depth."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.workloads.base import BATCH, Init, TensorSpec, Workload, WorkloadInfo, WorkloadRef
from mlflow_ngraph.workloads.options import Options, canonical, parse_options

if TYPE_CHECKING:
    import torch

_IMAGE_CHANNELS = 3


class StackOptions(Options):
    """Options of every ``block:``, and figures that follow from them."""

    style: ClassVar[str]

    width: int = Field(ge=1)
    """Channels of the convolutional block, embedding dimension of the attention block."""
    depth: int = Field(1, ge=1)
    """Number of stacked blocks."""

    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the input without its batch axis."""

    @abstractmethod
    def parameters(self) -> int:
        """Number of parameters of the stack."""

    @abstractmethod
    def paper_macs(self) -> int:
        """Multiply-accumulates of one sample as torchinfo counts them."""

    @abstractmethod
    def true_macs(self) -> int:
        """Multiply-accumulates of one sample."""

    @abstractmethod
    def build(self) -> torch.nn.Module:
        """Build the stack in evaluation mode (child process)."""


class ConvOptions(StackOptions):
    """Options of ``block:conv``."""

    style: ClassVar[str] = "Convolutional"

    image_size: int = Field(224, ge=1)
    """Height and width of the input."""
    stem: bool = False
    """Start from three channels with one more 3x3 convolution, which parameters and MACs leave out."""

    def shape(self) -> tuple[int, ...]:
        return (_IMAGE_CHANNELS if self.stem else self.width, self.image_size, self.image_size)

    def parameters(self) -> int:
        return self.depth * (9 * self.width**2 + 3 * self.width)

    def paper_macs(self) -> int:
        # torchinfo counts a bias like a weight, and the normalisation once per sample
        return self.depth * ((9 * self.width**2 + self.width) * self.image_size**2 + 2 * self.width)

    def true_macs(self) -> int:
        return self.depth * 9 * self.width**2 * self.image_size**2

    def build(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.torch_blocks import conv_stack

        return conv_stack(self.width, self.depth, _IMAGE_CHANNELS if self.stem else None)


class AttentionOptions(StackOptions):
    """Options of ``block:mha``."""

    style: ClassVar[str] = "Transformer"

    heads: int = Field(8, ge=1)
    """Attention heads; the width must be a multiple."""
    tokens: int = Field(10, ge=1)
    """Length of the sequence."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> AttentionOptions:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of {self.heads} heads: choose another width or heads"
            )
        return self

    def shape(self) -> tuple[int, ...]:
        return (self.tokens, self.width)

    def parameters(self) -> int:
        return self.depth * (4 * self.width**2 + 4 * self.width)

    def paper_macs(self) -> int:
        return 0  # torchinfo sees no layer of its own in nn.MultiheadAttention

    def true_macs(self) -> int:
        projections = 4 * self.tokens * self.width**2
        attention = 2 * self.tokens**2 * self.width
        return self.depth * (projections + attention)

    def build(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.torch_blocks import attention_stack

        return attention_stack(self.width, self.depth, self.heads)


_KINDS: dict[str, type[StackOptions]] = {"conv": ConvOptions, "mha": AttentionOptions}


class BlockWorkload(Workload):
    """``block:conv`` or ``block:mha``."""

    scheme: ClassVar[str] = "block"

    def __init__(self, ref: WorkloadRef, init: Init) -> None:
        if ref.target not in _KINDS:
            raise UnknownNameError("block", ref.target, _KINDS)
        self._stack = parse_options(_KINDS[ref.target], ref)
        super().__init__(canonical(ref, self._stack, always=("width", "depth")), init)

    @property
    def label(self) -> str:
        changed = self._stack.model_dump(exclude={"width", "depth"}, exclude_defaults=True)
        details = "".join(f"-{name}" if value is True else f"-{name}{value}" for name, value in changed.items())
        return f"{self.ref.target}-w{self._stack.width}-d{self._stack.depth}{details}"

    @property
    def family(self) -> str:
        return f"{self.ref.target}-block"

    @property
    def known(self) -> WorkloadInfo:
        return WorkloadInfo(
            ref=str(self.ref),
            label=self.label,
            family=self.family,
            inputs=self.inputs(),
            parameters=self._stack.parameters(),
            paper_macs=self._stack.paper_macs(),
            true_macs=self._stack.true_macs(),
            style=self._stack.style,
        )

    def check(self) -> None:
        """Do nothing: valid options suffice."""

    def inputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("input", "float32", (BATCH, *self._stack.shape())),)

    def module(self) -> torch.nn.Module:
        from mlflow_ngraph.workloads.initialise import calibrate, seeded

        with seeded(self.init.seed):
            model = self.skeleton()
        if self.init.calibrate:
            calibrate(model, self.inputs(), self.init.seed, str(self.ref))
        return model

    def skeleton(self) -> torch.nn.Module:
        return self._stack.build()
