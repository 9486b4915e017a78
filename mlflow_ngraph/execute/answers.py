"""Answers of the worker that cross the process border, with the types and ranges that events of the journal check."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from mlflow_ngraph.compilers.base import FlagValue

Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Batch = Annotated[int, Field(ge=1, lt=1 << 31)]
Nanoseconds = Annotated[int, Field(ge=1, lt=1 << 62)]
Name = Annotated[str, Field(min_length=1, max_length=20_000)]
Flags = dict[str, FlagValue]
Numbers = dict[str, Number]


class Built(TypedDict):
    """The answer to ``build``, beside the `EngineSpec` on disk."""

    stages: dict[str, float]
    """Seconds by stage."""
    seconds: float
    """Duration of the command."""
    stopped_s: list[float]
    """How long the process stood still meanwhile; ``stages`` are then empty."""


class ParityFields(TypedDict, total=False):
    """Fields of `mlflow_ngraph.parity.Parity`."""

    max_abs: float
    max_rel: float
    cosine: float
    top1: float
    integers: float


class Verified(TypedDict, total=False):
    """Checked fields of the answer to ``verify``."""

    load_s: Seconds
    parity: ParityFields | None
    inputs: Count


class VerifyAnswer(Verified, total=False):
    """The answer to ``verify``: fields of `mlflow_ngraph.execute.verifying.Verification`."""

    ill_conditioned: int
    refused: int
    unchecked: int
    unchecked_why: str
    no_numbers: int
    unjudged: list[int]
    judged: int
    ties: float
    ties_in: int
    without_truth: int
    too_slow: bool
    slowdown: float
    roundings: float
    seconds: Seconds
    problem: str
    vacuous: bool
    kept: str


class Ready(TypedDict, total=False):
    """Fields of the answer to ``load`` that the journal keeps."""

    load_s: Seconds
    first_inference_s: Seconds
    verify_s: Seconds
    stopped_s: list[Seconds]
    """How long the process stood still in the attempts at loading; the last one counts."""
    precision: str | None
    flags: Flags
    requests: Batch
    parity: ParityFields | None


class LoadAnswer(Ready, total=False):
    """The answer to ``load``."""

    problem: str | None
    """Reason why the engine is wrong on the timed inputs, or None."""


class MachineFields(TypedDict, total=False):
    """Fields of `mlflow_ngraph.devices.sensors.Change`."""

    seconds: Seconds
    cpu_s: Seconds
    counted: Numbers
    busy_s: Numbers
    values: Numbers


class Seen(TypedDict, total=False):
    """Readings around a slice or a rate."""

    started_ns: Count
    wall_s: Seconds
    page_faults: Count
    settle_s: Seconds
    peak_bytes: Count
    resident_bytes: Count | None
    machine: MachineFields | None
    stopped_s: list[Seconds]
    """How long the process stood still in earlier attempts, which do not count."""


class SliceAnswer(Seen, total=False):
    """The answer to ``slice``."""

    durations_ns: Annotated[list[Nanoseconds], Field(min_length=1)]


class ArrivalsAnswer(Seen, total=False):
    """The answer to ``arrive``."""

    servers: Batch
    due_ns: list[int]
    waited_ns: list[int]
    served_ns: list[int]
