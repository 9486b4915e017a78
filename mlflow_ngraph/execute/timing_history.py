"""TimingHistory: durations of earlier studies on this machine, to estimate further ones.

The same lane is known well, other models with the same compiler roughly, and the rest is assumed. A duration is split
by these sources.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from mlflow_ngraph.devices import probes
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.events import wrong

Source = Literal["measured", "similar", "assumed"]
"""Measured here for the same; for something similar; assumed."""

FACTORS: Mapping[Source, float] = {"measured": 1.25, "similar": 2.0, "assumed": 3.0}
"""Factor by which a duration of each source may be off."""
STUDIES = 20
"""Number of newest studies to read."""
_SLICE = b'{"event":"slice"'
"""Prefix of slice events: they fill most of a journal, and warm-ups tell the same in short."""


@dataclass(frozen=True)
class Duration:
    """Seconds by source."""

    parts: Mapping[Source, float] = field(default_factory=dict)

    @classmethod
    def of(cls, seconds: float, source: Source = "assumed") -> Duration:
        return cls({source: seconds})

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def low(self) -> float:
        return self._end(lambda factor: 1 - 1 / factor, -1)

    @property
    def high(self) -> float:
        return self._end(lambda factor: factor - 1, 1)

    def share(self, source: Source) -> float:
        """Fraction from a source, from 0 to 1."""
        return self.parts.get(source, 0.0) / self.seconds if self.seconds else 0.0

    def times(self, factor: float) -> Duration:
        return Duration({source: factor * seconds for source, seconds in self.parts.items()})

    def __add__(self, other: Duration) -> Duration:
        return Duration(
            {
                source: self.parts.get(source, 0.0) + other.parts.get(source, 0.0)
                for source in FACTORS
                if source in self.parts or source in other.parts
            }
        )

    def _end(self, reach: Callable[[float], float], side: int) -> float:
        # The parts of one source are wrong together; different sources are wrong independently.
        reaches = (seconds * reach(FACTORS[source]) for source, seconds in self.parts.items())
        return self.seconds + side * math.sqrt(sum(part**2 for part in reaches))


def total(parts: Iterable[Duration]) -> Duration:
    """Add durations."""
    duration = Duration()
    for part in parts:
        duration = duration + part
    return duration


class TimingHistory:
    """Durations of earlier studies on this machine. Empty, it returns the assumptions."""

    def __init__(self) -> None:
        self._preparing: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
        self._building: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
        self._compiling: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._loading: dict[str, list[float]] = defaultdict(list)
        self._starting: dict[str, list[float]] = defaultdict(list)
        self._verifying: dict[str, list[float]] = defaultdict(list)
        self._checking: dict[str, list[float]] = defaultdict(list)
        self._calling: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._kept: set[tuple[str, str, str]] = set()
        self._compilers: dict[str, str] = {}
        """By lane."""
        self._flags: dict[str, str] = {}
        """As JSON, by lane."""

    def preparing(self, workload: str, batch_sizes: Sequence[int], otherwise: Duration) -> Duration:
        """Duration of building a model, running the baseline at some batch sizes and exporting it.

        ``otherwise`` is expected where this was not done here before.
        """
        same = self._preparing.get((workload, tuple(batch_sizes)))
        return Duration.of(median(same), "measured") if same else otherwise

    def building(
        self,
        lane: str,
        compiler: str,
        batch_sizes: Sequence[int],
        otherwise: Callable[[Mapping[str, Any] | None], float],
    ) -> Duration:
        """Duration of compiling one engine.

        ``otherwise`` gives the expected seconds with some flags of the compiler, or with those of the lane. Other flags
        take longer or shorter in proportion, such as a search of more trials.
        """
        here = otherwise(None)
        alike = [
            seconds * here / usual
            for (name, flags), several in self._compiling.items()
            if name == compiler and (usual := otherwise(json.loads(flags)))
            for seconds in several
        ]
        return _known(self._building.get((lane, tuple(batch_sizes))), alike, here)

    def loading(self, cell: str, compiler: str, otherwise: float) -> Duration:
        """Duration of loading an engine, up to the first inference; without imports."""
        return _known(self._loading.get(cell), self._starting.get(compiler), otherwise)

    def verifying(self, cell: str, compiler: str, otherwise: float) -> Duration:
        """Duration of comparing an engine with the baseline.

        Other models may be smaller: it is at least ``otherwise`` where only they are known.
        """
        others = [max(seconds, otherwise) for seconds in self._checking.get(compiler, ())]
        return _known(self._verifying.get(cell), others, otherwise)

    def call_s(self, lane: str, batch: int) -> tuple[float, Source] | None:
        """Seconds of an inference, scaled from other batch sizes if needed; None when unknown."""
        known = {size: median(seconds) for (name, size), seconds in self._calling.items() if name == lane}
        if not known:
            return None
        nearest = min(known, key=lambda size: abs(math.log(size / batch)))
        return known[nearest] * batch / nearest, "measured" if nearest == batch else "similar"

    def keeps(self, workload: str, compiler: str, precision: str) -> bool:
        """Return True when the cache has engines of this kind, which are hardly compiled again."""
        return (workload, compiler, precision) in self._kept

    def kept(self, workload: str, compiler: str, precision: str) -> None:
        """Note that the cache has engines of this kind."""
        self._kept.add((workload, compiler, precision))

    def learn_from(self, events: Iterable[journal.Event]) -> None:
        """Learn from the events of a study, in order, without slices."""
        for event in events:
            kind = event["event"]
            lanes = [lane for lane in event.get("lanes", ()) if isinstance(lane, dict)]
            self._compilers.update({lane["id"]: lane["compiler"] for lane in lanes})
            self._flags.update({lane["id"]: json.dumps(lane.get("flags", {}), sort_keys=True) for lane in lanes})
            compiler = self._compilers.get(event.get("lane", ""), "")
            if kind == "workload_prepared":
                batch_sizes = tuple(event["materials"].get("batch_sizes", ()))
                self._preparing[event["workload"], batch_sizes].append(event["seconds"])
            elif kind == "engine_built" and event["reused"] is None and event["stages"]:
                # Preparation includes the exports.
                seconds = sum(took for stage, took in event["stages"].items() if stage != "export")
                self._building[event["lane"], tuple(event["batch_sizes"])].append(seconds)
                self._compiling[compiler, self._flags.get(event["lane"], "{}")].append(seconds)
            elif kind == "cell_verified":
                seconds = event["load_s"] + event["seconds"]
                self._verifying[event["cell"]].append(seconds)
                self._checking[compiler].append(seconds)
            elif kind == "cell_ready":
                seconds = event["load_s"] + event["first_inference_s"]
                self._loading[event["cell"]].append(seconds)
                self._starting[compiler].append(seconds)
            elif kind == "cell_finished" and event.get("warm_up"):
                call_s = event["warm_up"]["call_s"]  # before there is a list for it: it may lack
                self._calling[event["lane"], event["batch"]].append(call_s)


def learn(home: Path) -> TimingHistory:
    """Learn from the newest studies of a home, which need not exist, that ran on the same processors."""
    history, processors = TimingHistory(), probes.as_plain(probes.cpu())
    journals = sorted((home / "studies").glob(f"*/{journal.FILE_NAME}"), key=lambda path: -path.stat().st_mtime)
    for path in journals[:STUDIES]:
        events = _events(path)
        first = next(events, None)
        # A journal of another version, or one that was changed, may say anything.
        with suppress(KeyError, TypeError, AttributeError, ValueError):
            if first is not None and _processors(first) == processors:
                history.learn_from([first, *events])
    return history


def _processors(started: Mapping[str, Any]) -> Any:
    return started["fingerprint"].get("hardware", {}).get("cpu")


def _events(path: Path) -> Iterator[journal.Event]:
    """Events of a journal without slices, up to the first unreadable one: it may be growing."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.startswith(_SLICE):
                    continue
                event = json.loads(line)
                if wrong(event):
                    return
                yield event
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return


def _known(same: Sequence[float] | None, like: Sequence[float] | None, otherwise: float) -> Duration:
    """The median from the best source."""
    if same:
        return Duration.of(median(same), "measured")
    if like:
        return Duration.of(median(like), "similar")
    return Duration.of(otherwise)
