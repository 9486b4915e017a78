"""Rounds of a race from earlier sessions, read from the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from mlflow_ngraph.errors import JournalError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.measure.racing import Round, Timed
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class EarlierRounds:
    """Results of a workload from earlier sessions."""

    rounds: Mapping[Round, Mapping[str, Timed]] = field(default_factory=dict)
    """Slices by round and cell."""
    barred: frozenset[str] = frozenset()
    """Cells that failed or cannot keep a limit."""


def read_earlier_rounds(directory: Path, lanes: Iterable[Lane]) -> EarlierRounds:
    """Read the rounds of some lanes from a study directory."""
    mine = {lane.cell(batch): batch for lane in lanes for batch in lane.batch_sizes}
    rounds: dict[Round, dict[str, Timed]] = defaultdict(dict)
    requests: dict[str, int] = {}
    barred: set[str] = set()
    with suppress(JournalError):  # a study that has just begun has none
        for event in journal.read(directory):
            cell = event.get("cell")
            if cell not in mine:
                continue
            if event["event"] == "cell_ready":
                requests[cell] = event["requests"]
            elif (event["event"] == "lane_left" and event["limit"]) or (
                event["event"] == "cell_finished" and not Verdict(event["verdict"]).measured
            ):
                barred.add(cell)
            elif event["event"] == "slice":
                timed = slice_timed(event["durations_ns"], mine[cell], requests.get(cell, 1))
                rounds[event["session"], event["round"]][cell] = timed
    return EarlierRounds(rounds, frozenset(barred))


def slice_timed(durations_ns: ArrayLike, batch: int, requests: int) -> Timed:
    """Convert a slice for the race."""
    seconds = np.asarray(durations_ns, float) / 1e9
    return Timed(float(np.median(seconds)), float(seconds.min()), float(batch * requests))
