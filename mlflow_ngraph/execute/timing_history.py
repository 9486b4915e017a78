"""How long the parts of a study took on this machine before, and so about how long they will take.

What the same lane took is known well, what other models took with the same compiler roughly, and what nobody has done here
yet is assumed. A duration says which of them it is made of.
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
"""The same was done here; something like it was done here; a round figure."""

FACTORS: Mapping[Source, float] = {"measured": 1.25, "similar": 2.0, "assumed": 3.0}
"""By how much a duration of each source may be off, to either side."""
STUDIES = 20
"""The newest ones that are read."""
_SLICE = b'{"event":"slice"'
"""How the events begin that make up most of a journal, and that say nothing here that a warm-up does not say shorter."""


@dataclass(frozen=True)
class Duration:
    """Seconds, by where they are known from."""

    parts: Mapping[Source, float] = field(default_factory=dict)

    @classmethod
    def of(cls, seconds: float, source: Source = "assumed") -> Duration:
        """So many seconds of one source."""
        return cls({source: seconds})

    @property
    def seconds(self) -> float:
        """What is expected."""
        return sum(self.parts.values())

    @property
    def low(self) -> float:
        """What it hardly is below."""
        return self._end(lambda factor: 1 - 1 / factor, -1)

    @property
    def high(self) -> float:
        """What it hardly is above."""
        return self._end(lambda factor: factor - 1, 1)

    def share(self, source: Source) -> float:
        """How much of it is known from a source, from 0 to 1."""
        return self.parts.get(source, 0.0) / self.seconds if self.seconds else 0.0

    def times(self, factor: float) -> Duration:
        """So many of it."""
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
        # What is wrong with one source is wrong with all of it; different sources are wrong independently.
        reaches = (seconds * reach(FACTORS[source]) for source, seconds in self.parts.items())
        return self.seconds + side * math.sqrt(sum(part**2 for part in reaches))


def total(parts: Iterable[Duration]) -> Duration:
    """The sum of durations."""
    duration = Duration()
    for part in parts:
        duration = duration + part
    return duration


class Experience:
    """What earlier studies on this machine took. Without any, every answer is assumed."""

    def __init__(self) -> None:
        self._preparing: dict[str, list[float]] = defaultdict(list)
        self._building: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
        self._compiling: dict[str, list[float]] = defaultdict(list)
        self._loading: dict[str, list[float]] = defaultdict(list)
        self._starting: dict[str, list[float]] = defaultdict(list)
        self._verifying: dict[str, list[float]] = defaultdict(list)
        self._checking: dict[str, list[float]] = defaultdict(list)
        self._calling: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._kept: set[tuple[str, str, str]] = set()
        self._compilers: dict[str, str] = {}
        """By lane."""

    def preparing(self, workload: str, otherwise: float) -> Duration:
        """Building a model, running the baseline, and exporting it.

        Parameters
        ----------
        otherwise : float
            Seconds that are assumed where nothing is known.
        """
        others = [seconds for known in self._preparing.values() for seconds in known]
        return _known(self._preparing.get(workload), others, otherwise)

    def building(self, lane: str, compiler: str, batch_sizes: Sequence[int], otherwise: float) -> Duration:
        """Compiling one engine.

        Parameters
        ----------
        lane : str
            Its id.
        compiler : str
            Its name.
        otherwise : float
            As in `preparing`.
        """
        return _known(self._building.get((lane, tuple(batch_sizes))), self._compiling.get(compiler), otherwise)

    def loading(self, cell: str, compiler: str, otherwise: float) -> Duration:
        """Loading an engine into a process that has its runtime, up to the first inference.

        Parameters
        ----------
        cell : str
            Its id.
        compiler : str
            The compiler's name.
        otherwise : float
            As in `preparing`.
        """
        return _known(self._loading.get(cell), self._starting.get(compiler), otherwise)

    def verifying(self, cell: str, compiler: str, otherwise: float) -> Duration:
        """Comparing an engine with the baseline on other inputs; parameters as in `loading`."""
        return _known(self._verifying.get(cell), self._checking.get(compiler), otherwise)

    def call_s(self, lane: str, batch: int) -> tuple[float, Source] | None:
        """Seconds of an inference, in proportion where only other batch sizes are known; None where none is."""
        known = {size: median(seconds) for (name, size), seconds in self._calling.items() if name == lane}
        if not known:
            return None
        nearest = min(known, key=lambda size: abs(math.log(size / batch)))
        return known[nearest] * batch / nearest, "measured" if nearest == batch else "similar"

    def keeps(self, workload: str, compiler: str, precision: str) -> bool:
        """Whether engines of this kind are kept on this machine, so that they need hardly be compiled again."""
        return (workload, compiler, precision) in self._kept

    def kept(self, workload: str, compiler: str, precision: str) -> None:
        """Engines of this kind are kept on this machine."""
        self._kept.add((workload, compiler, precision))

    def take_in(self, events: Iterable[journal.Event]) -> None:
        """Learn from events of a study, in order; those of slices are not needed."""
        for event in events:
            kind = event["event"]
            lanes = [lane for lane in event.get("lanes", ()) if isinstance(lane, dict)]
            self._compilers.update({lane["id"]: lane["compiler"] for lane in lanes})
            compiler = self._compilers.get(event.get("lane", ""), "")
            if kind == "workload_prepared":
                self._preparing[event["workload"]].append(event["seconds"])
            elif kind == "engine_built" and event["reused"] is None:
                # Exports are part of what preparing took.
                seconds = sum(took for stage, took in event["stages"].items() if stage != "export")
                self._building[event["lane"], tuple(event["batch_sizes"])].append(seconds)
                self._compiling[compiler].append(seconds)
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


def learn(home: Path) -> Experience:
    """What the newest studies below a directory say that ran on processors like those of this machine.

    Parameters
    ----------
    home : Path
        Holds studies and the engines that they share; need not exist.
    """
    experience, processors = Experience(), probes.as_plain(probes.cpu())
    journals = sorted((home / "studies").glob(f"*/{journal.FILE_NAME}"), key=lambda path: -path.stat().st_mtime)
    for path in journals[:STUDIES]:
        events = _events(path)
        first = next(events, None)
        # A journal of another version says other things, and one that was changed may say anything.
        with suppress(KeyError, TypeError, AttributeError, ValueError):
            if first is not None and _processors(first) == processors:
                experience.take_in([first, *events])
    return experience


def _processors(started: Mapping[str, Any]) -> Any:
    return started["fingerprint"].get("hardware", {}).get("cpu")


def _events(path: Path) -> Iterator[journal.Event]:
    """The events of a journal but for its slices, up to the first that cannot be read: others may be writing it."""
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
    """The median of what is known best."""
    if same:
        return Duration.of(median(same), "measured")
    if like:
        return Duration.of(median(like), "similar")
    return Duration.of(otherwise)
