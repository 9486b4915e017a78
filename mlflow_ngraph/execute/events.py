"""Schemas of journal events: types and ranges of every field that is read.

Checksums do not stop forged lines. Missing fields are left to the readers, and fields that nobody reads are not
checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from mlflow_ngraph.execute.answers import (
    ArrivalsAnswer,
    Batch,
    Count,
    Flags,
    Name,
    Number,
    Ready,
    Seconds,
    SliceAnswer,
    Verified,
)
from mlflow_ngraph.execute.record import EngineRecord
from mlflow_ngraph.text import shortened
from mlflow_ngraph.verdicts import Verdict

_VERDICTS = "|".join(Verdict)

Texts = dict[str, str]


class _Any(TypedDict, total=False):
    """Fields shared by all events."""

    __pydantic_config__ = ConfigDict(strict=True, extra="ignore")  # type: ignore[misc]
    at: Seconds
    lane: Name
    cell: Name
    workload: Name
    batch: Batch
    reason: str
    seconds: Seconds


class _Lane(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="ignore")  # type: ignore[misc]
    id: Name
    workload: Name
    label: str
    family: str
    compiler: Name
    compiler_label: str
    flags: Flags
    precision: str
    mode: str
    threads: Annotated[int, Field(ge=1, le=1_000_000)] | None
    device: str
    batch_sizes: Annotated[list[Batch], Field(min_length=1)]
    transfers: str


class _Cpu(TypedDict, total=False):
    threads: Annotated[int, Field(ge=1, le=1_000_000)]


class _Hardware(TypedDict, total=False):
    cpu: _Cpu


class _Fingerprint(TypedDict, total=False):
    digest: str
    hardware: _Hardware


class _Study(TypedDict, total=False):
    name: Name


class _Started(_Any, total=False):
    study_id: Name
    study: _Study
    device: Name
    fingerprint: _Fingerprint
    versions: dict[str, str | None]
    lanes: list[_Lane]


class _Session(_Any, total=False):
    lanes: list[_Lane]
    variables: Texts


class _Tensor(TypedDict, total=False):
    name: str
    dtype: str
    shape: list[int | str]


class _Info(TypedDict, total=False):
    ref: Name
    label: str
    family: str
    inputs: list[_Tensor]
    parameters: Count | None
    paper_macs: Count | None
    true_macs: Count | None


class _Materials(TypedDict, total=False):
    info: _Info
    digest: str | None
    outputs: list[_Tensor]
    formats: dict[str, Any]
    behaviour: dict[str, Any]


class _Prepared(_Any, total=False):
    materials: _Materials


class _Verified(_Any, Verified, total=False):
    pass


class _Ready(_Any, Ready, total=False):
    engine: Name | None
    continued: bool


class _Turn(_Any, total=False):
    """Place of a slice in its session, and the waiting parent's use of time."""

    session: Count
    round: Count
    position: Count
    companion: bool
    loading: Count
    harness_cpu_s: Seconds
    harness_wall_s: Seconds


class _Slice(_Turn, SliceAnswer, total=False):
    pass


class _Arrivals(_Turn, ArrivalsAnswer, total=False):
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    window_s: Seconds
    process: str
    purpose: str
    step: Count


class _WarmUp(TypedDict, total=False):
    repetitions: Count
    seconds: Seconds
    steady: bool
    call_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    fastest_s: Seconds


class _Finished(_Any, total=False):
    verdict: Annotated[str, Field(pattern=f"^(?:{_VERDICTS})$")]
    noise: str
    stderr_tail: str
    engine: Name | None
    warm_up: _WarmUp | None


class _LaneEnded(_Any, total=False):
    overhead_s: Number | None


class _StudyEnded(_Any, total=False):
    offline: bool


class _LeftOut(_Any, total=False):
    final: bool


class _Opened(_Any, total=False):
    experiment_id: Annotated[str, Field(pattern=r"^\w{1,100}$")]
    run_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class _Recorded(_Any, total=False):
    lane: Name
    run_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    models: dict[Name, Annotated[str, Field(pattern="^(m-)?[0-9a-f]{32}$")]]


class _Contender(TypedDict, total=False):
    cell: Name
    lane: Name
    batch: Batch
    rounds: Count
    ratio: float
    low: float | None
    high: float | None


class _Race(_Any, total=False):
    ending: str
    leader: Name | None
    contenders: list[_Contender]


class _Left(_Any, total=False):
    round: Count
    rounds: Count
    rival: Name | None
    shared: Count | None
    ratio: float | None
    bound: float | None


_KNOWN: Mapping[str, TypeAdapter[Any]] = {
    kind: TypeAdapter(model)
    for kind, model in {
        "study_started": _Started,
        "session_started": _Session,
        "workload_prepared": _Prepared,
        "engine_built": EngineRecord,
        "cell_verified": _Verified,
        "cell_ready": _Ready,
        "slice": _Slice,
        "arrivals": _Arrivals,
        "cell_finished": _Finished,
        "lane_finished": _LaneEnded,
        "study_finished": _StudyEnded,
        "left_out": _LeftOut,
        "record_opened": _Opened,
        "lane_opened": _Recorded,
        "lane_recorded": _Recorded,
        "race_ended": _Race,
        "lane_left": _Left,
    }.items()
}
_OTHERS = TypeAdapter(_Any)


def wrong(event: Mapping[str, Any]) -> str:
    """Describe the first invalid field of an event; empty when it is valid."""
    try:
        _KNOWN.get(event["event"], _OTHERS).validate_python(event)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"])
        return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}, found {shortened(first['input'])}"
    return ""
