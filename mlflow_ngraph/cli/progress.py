"""Progress of a study: cells done, what is being compiled or measured, elapsed and remaining time.

The display changes only when an event arrives. There is no refresh in the background: a busy parent would slow what
its children measure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlflow_ngraph.cli.output import WIDTH, broken
from mlflow_ngraph.execute import expected_time
from mlflow_ngraph.execute.plan import StudyPlan
from mlflow_ngraph.text import duration, harmless

L = TypeVar("L", bound="LiveArea")

_REDRAW_SECONDS = 2.0
_TOLD = (
    "cache_problem",
    "group_closed",
    "interrupted",
    "journal_busy",
    "machine_busy",
    "record_opened",
    "recording_failed",
    "recording_resumed",
    "repeated_alone",
    "server_away",
    "session_started",
    "study_is_large",
    "workload_refused",
)
"""Events that leave a line behind on a terminal."""
_COLUMN = 14
"""Column in which lines begin behind the time."""
Part = tuple[str, str]
"""``prepare`` and a workload, ``build`` and a lane, or a lane and a batch size."""
_PACE_BOUNDS = (0.3, 4.0)
"""Bounds of the pace: one odd part does not make the rest absurd."""
_TRUSTED = 0.1
"""The share of a study that has to be done until its own pace weighs as much as the estimate made before it."""


@dataclass
class TimeToGo:
    """The parts of a session that are done, by their estimated seconds."""

    expected_s: float
    """Estimated seconds of the whole session."""
    _done: dict[Part, float] = field(default_factory=dict)
    _under_way: Mapping[Part, float] = field(default_factory=dict)
    _pace: float = 1.0

    def measuring(self, parts: Mapping[Part, float]) -> None:
        """Some cells share a round: when the first of them ends, most of the time of the others is spent, too."""
        self._under_way = parts

    def finished(self, part: Part, estimated_s: float, elapsed_s: float) -> None:
        """A part is done, so many seconds after the session began; one that was done before counts once."""
        self._done.setdefault(part, estimated_s)
        spent_on = sum({**self._under_way, **self._done}.values())
        prior = _TRUSTED * self.expected_s
        low, high = _PACE_BOUNDS
        if spent_on + prior > 0:
            self._pace = min(high, max(low, (elapsed_s + prior) / (spent_on + prior)))

    @property
    def seconds(self) -> float:
        return max(0.0, self.expected_s - sum(self._done.values())) * self._pace


@dataclass(frozen=True)
class ShownLane:
    """Facts of a lane for the display."""

    label: str
    compiler: str
    cell_seconds: float
    """Estimated seconds of measuring one of its cells."""
    building_seconds: float = 0.0
    """Estimated seconds of having its engines, verified."""


@dataclass
class State:
    """Progress of a study, from its events."""

    lanes: Mapping[str, ShownLane]
    cells: int
    """Cells of the whole study."""
    preparing: Mapping[str, float] = field(default_factory=dict)
    """Estimated seconds of preparing each workload."""
    within_s: float = math.inf
    """All the time that the study may take."""
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    _activity: str = "starting"
    _labels: dict[str, str] = field(default_factory=dict)
    """Labels of workloads."""
    _waiting_since: float | None = None
    """Elapsed seconds at which waiting for another measurement began."""
    _beside: dict[str, str] = field(default_factory=dict)
    """Names of what is being prepared, compiled or verified, by workload or lane."""
    _place: str = ""
    """The workload and batch sizes of the last round."""
    _before: int = 0
    """Cells that earlier sessions finished."""
    _finished: set[str] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)
    """Remarks on cells that were shown before."""
    _to_go: TimeToGo = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self._to_go = TimeToGo(self._expected_s)

    @property
    def _expected_s(self) -> float:
        mean = sum(lane.cell_seconds for lane in self.lanes.values()) / max(1, len(self.lanes))
        engines = sum(lane.building_seconds for lane in self.lanes.values())
        return sum(self.preparing.values()) + engines + mean * self.cells

    @classmethod
    def of(cls, plan: StudyPlan) -> State:
        """State before a plan begins."""
        lanes, preparing = {}, {}
        for workload in plan.workloads:
            preparing[str(workload.ref)] = expected_time.preparing(plan, workload).seconds
            for lane in workload.lanes:
                building = expected_time.engines(plan, workload, lane).seconds
                measuring = expected_time.of_lane(plan, workload, lane).seconds - building
                compiler = (
                    lane.compiler_label if lane.precision == "fp32" else f"{lane.compiler_label} {lane.precision}"
                )
                lanes[lane.id] = ShownLane(lane.label, compiler, measuring / len(lane.batch_sizes), building)
        return cls(lanes, plan.cells, preparing, plan.study.within or math.inf)

    @property
    def activity(self) -> str:
        return "; ".join(self._beside.values()) or self._activity

    @property
    def done(self) -> int:
        return min(self.cells, self._before + len(self._finished))

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def remaining_s(self) -> float:
        left = max(0.0, self.within_s - self.elapsed_s)
        return 0.0 if self.done >= self.cells else min(self._to_go.seconds, left)

    def update(self, event: Mapping[str, Any]) -> str | None:
        """Take in an event; returns a line worth printing, or None."""
        handler = getattr(self, f"_on_{event.get('event')}", None)
        return handler(event) if handler is not None else None

    def _on_session_started(self, event: Mapping[str, Any]) -> str | None:
        if self._waiting_since is not None:
            self.within_s += self.elapsed_s - self._waiting_since
        self._before = int(event.get("done", 0))
        self._to_go.expected_s = self._expected_s * (1 - self._before / max(1, self.cells))
        if int(event.get("session", 1)) == 1:
            return None
        # It has the name that it was begun under, though the file may have another one now.
        return f"going on with {event.get('study_id')}, which has {self._before} of {self.cells} cells; --fresh begins anew"

    def _on_workload_started(self, event: Mapping[str, Any]) -> str:
        ref = str(event.get("workload"))
        self._labels[ref] = str(event.get("label", ref))
        self._activity = f"preparing {self._labels[ref]}"
        return self._activity

    def _on_stage(self, event: Mapping[str, Any]) -> str | None:
        stage, ref = str(event.get("stage", "")), str(event.get("workload"))
        lane = self.lanes.get(str(event.get("lane")))
        if lane is None:
            if "workload" in event:
                self._beside[ref] = f"preparing {self._labels.get(ref, ref)}: {stage}"
            return None
        batch = f" batch {event['batch']}" if event.get("batch") else ""
        verb = {"compile": "compiling", "verify": "verifying", "load": "loading and comparing"}.get(stage, stage)
        activity = f"{verb} {lane.label} with {lane.compiler}{batch}"
        if event.get("purpose") is None:
            self._activity = activity
        else:
            self._beside[str(event.get("lane"))] = activity
        return activity if stage == "compile" else None

    def _on_process_ended(self, event: Mapping[str, Any]) -> None:
        self._beside.pop(str(event.get("lane", event.get("workload"))), None)
        lane = self.lanes.get(str(event.get("lane")))
        if lane is not None and event.get("purpose") == "verify":
            self._to_go.finished(("build", str(event["lane"])), lane.building_seconds, self.elapsed_s)

    def _on_workload_prepared(self, event: Mapping[str, Any]) -> None:
        ref = str(event.get("workload"))
        self._to_go.finished(("prepare", ref), self.preparing.get(ref, 0.0), self.elapsed_s)

    def _on_repeated_alone(self, event: Mapping[str, Any]) -> str:
        lane, ref = self.lanes.get(str(event.get("lane"))), str(event.get("workload"))
        what = f"{lane.label} with {lane.compiler}" if lane else self._labels.get(ref, ref)
        return f"{what}: once more with nothing beside it: {event.get('reason')}"

    def _on_engine_built(self, event: Mapping[str, Any]) -> str | None:
        lane, reused = self.lanes.get(str(event.get("lane"))), event.get("reused")
        if lane is None or not reused:
            return None
        source = f"study {reused.get('study_id')}"
        source += f" on {reused['tracking_uri']}" if reused.get("tracking_uri") else ""
        return f"reusing {lane.label} with {lane.compiler}: compiled by {source}"

    def _on_cache_problem(self, event: Mapping[str, Any]) -> str:
        lane = self.lanes.get(str(event.get("lane")))
        return f"{f'{lane.label} with {lane.compiler}: ' if lane else ''}{event.get('reason')}"

    def _on_group_closed(self, event: Mapping[str, Any]) -> str:
        return f"measuring in groups at batch {event.get('batch')}: {event.get('reason')}"

    def _on_interrupted(self, event: Mapping[str, Any]) -> str:
        self._activity = "ending after what is under way" if event.get("after") else "ending"
        return f"{self._activity}: what was measured is kept, and recorded if it can be; Ctrl-C again ends at once"

    def _on_machine_busy(self, event: Mapping[str, Any]) -> str:
        if self._waiting_since is None:
            self._waiting_since = self.elapsed_s
        self._activity = f"waiting: this machine is measuring {event.get('holder')}"
        return self._activity

    def _on_journal_busy(self, event: Mapping[str, Any]) -> str:
        self._activity = f"waiting: {event.get('reason')}"
        return self._activity

    def _on_recording_resumed(self, event: Mapping[str, Any]) -> str:
        self._activity = "measured to its end before, but not recorded: recording it now; --fresh measures anew"
        return f"{event.get('directory')}: {self._activity}"

    def _on_recording_started(self, event: Mapping[str, Any]) -> str:
        what = "recording what was measured; interrupt again to leave that to mlflow-ngraph study sync"
        self._activity = what if event.get("interrupted") else "recording"
        return self._activity

    def _on_record_opened(self, event: Mapping[str, Any]) -> str | None:
        return event.get("reason") or None

    def _on_recording_failed(self, event: Mapping[str, Any]) -> str:
        self._activity = f"not recorded for now, and kept here: {event.get('reason')}"
        return self._activity

    def _on_recording_waits(self, event: Mapping[str, Any]) -> str:
        count = int(event.get("lanes", 0))
        return f"{'1 lane waits' if count == 1 else f'{count} lanes wait'} for the tracking server"

    def _on_server_away(self, event: Mapping[str, Any]) -> str:
        self._activity = (
            f"{event.get('reason')}; measuring all the same: what is measured is kept here, and recorded once it answers, or by "
            "mlflow-ngraph study sync"
        )
        return self._activity

    def _on_study_is_large(self, event: Mapping[str, Any]) -> str:
        home, artifacts, memory = (event.get(f"{name}_bytes", 0) / 1e9 for name in ("home", "artifact", "memory"))
        return (
            f"needs about {home:.1f} GB in the home directory, {artifacts:.1f} GB where MLflow keeps artifacts, and up to "
            f"{memory:.1f} GB of memory"
        )

    def _on_workload_refused(self, event: Mapping[str, Any]) -> str:
        return f"{event.get('label')} fails, the others are measured: {event.get('reason')}"

    def _on_round(self, event: Mapping[str, Any]) -> str | None:
        taking = {str(lane): self.lanes[lane] for lane in event.get("lanes", ()) if lane in self.lanes}
        if not taking:
            return None
        known = list(taking.values())
        if isinstance(event.get("batch"), int):  # cells of a race, which are of several batch sizes, end one by one
            self._to_go.measuring({(name, str(event["batch"])): lane.cell_seconds for name, lane in taking.items()})
        names = ", ".join(sorted({lane.compiler for lane in known}))
        place = f"{known[0].label} at batch {event.get('batch')}"
        self._activity = f"measuring {place}: {names}"
        new, self._place = place != self._place, place
        return self._activity if new else None

    def _on_cell_finished(self, event: Mapping[str, Any]) -> str:
        noise = event.get("noise") and f"the machine was not quiet: {event['noise']}"
        remarks = [self._once(event.get("reason"), "as above"), self._once(noise, "not quiet", "noise")]
        reason = f" ({'; '.join(filter(None, remarks))})" if any(remarks) else ""
        return f"{self._ended(event)}: {event.get('verdict')}{reason}"

    def _on_left_out(self, event: Mapping[str, Any]) -> str:
        return f"{self._ended(event)}: left out ({self._once(event.get('reason'), 'as above')})"

    def _ended(self, event: Mapping[str, Any]) -> str:
        """Count a cell as done; returns how many are, and its name."""
        cell, lane = str(event.get("cell")), self.lanes.get(str(event.get("lane")))
        self._finished.add(cell)
        if lane is not None:
            name = str(event["lane"])
            self._to_go.finished(("build", name), lane.building_seconds, self.elapsed_s)
            self._to_go.finished((name, str(event.get("batch"))), lane.cell_seconds, self.elapsed_s)
            cell = f"{lane.label} {lane.compiler} batch {event.get('batch')}"
        return f"[{self.done}/{self.cells}] {cell}"

    def _once(self, said: str | None, again: str, of: str = "") -> str | None:
        """Remark on a cell; shortened where it, or one of its kind, was shown before."""
        if not said or (of or said) not in self._said:
            self._said.add((of or said) if said else "")
            return said
        return again

    def _on_lane_recorded(self, event: Mapping[str, Any]) -> None:
        lane = self.lanes.get(str(event.get("lane")))
        if lane is not None:
            self._activity = f"recording {lane.label} with {lane.compiler}"


class LiveArea:
    """An area of a terminal that is drawn anew within the block; ``live`` is None elsewhere."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    def __enter__(self: L) -> L:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


class Progress(LiveArea):
    """Shows the state on a console: one live area on a terminal, plain lines elsewhere. An observer of a study."""

    def __init__(self, state: State, console: Console) -> None:
        self._state = state
        self._console = console
        self._drawn = 0.0
        super().__init__(Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None)

    def on_event(self, event: dict[str, Any]) -> None:
        line = self._state.update(event)
        if self._live is None:
            if line is not None:
                said = f"{duration(self._state.elapsed_s):>12}  {line}{self._to_go(event)}"
                self._console.print(Text(broken(said, WIDTH, " " * _COLUMN)), soft_wrap=True)
            return
        finished = event.get("event") == "cell_finished" and event.get("verdict") != "ok"
        if line is not None and (finished or event.get("event") in _TOLD):
            self._console.print(Text(line, style="yellow"))
        # Rounds of a fast cell follow each other within milliseconds; drawing each would cost what is being measured.
        if line is not None or time.monotonic() - self._drawn > _REDRAW_SECONDS:
            self._live.update(self._area(), refresh=True)
            self._drawn = time.monotonic()

    def _to_go(self, event: Mapping[str, Any]) -> str:
        remaining = self._state.remaining_s
        return f"; about {duration(remaining)} to go" if event.get("event") == "cell_finished" and remaining else ""

    def _area(self) -> Table:
        state = self._state
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(1, state.cells), completed=state.done, width=30),
            Text(f"{state.done}/{state.cells} cells", style="bold"),
            Text(f"{duration(state.elapsed_s)} elapsed, about {duration(state.remaining_s)} to go"),
        )
        area = Table.grid()
        area.add_row(bar)
        area.add_row(Text(harmless(state.activity), style="cyan", overflow="ellipsis", no_wrap=True))
        return area
