"""RaceWords: the reasons and journal entries of the cells of a race."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.measure.racing import Departure, Ending, Exclusion, Race
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.text import counted

Cells = Mapping[str, tuple[Lane, int]]
"""Lane and batch size of every cell of a workload."""


class RaceWords:
    """Formats the results of one race. ``cells`` are all that may take part."""

    def __init__(self, race: Race, cells: Cells) -> None:
        self._race = race
        self._cells = cells

    def left(self, departure: Departure) -> str:
        """Explain why a cell cannot be the best."""
        rival = self._named(departure.rival, departure.cell)
        return (
            f"left {self._after(departure.cell)}: about {departure.ratio:.2g} times as fast as {rival}, "
            f"and at most {departure.bound:.2g} times as fast as the best"
        )

    def too_much(self, cell: str, limit: str) -> str:
        """Explain why a cell cannot keep a limit."""
        return f"left {self._after(cell)}: it cannot keep {limit} any more"

    def excluded(self, exclusion: Exclusion) -> str:
        """Explain why a cell is not measured."""
        batch, smaller = self._cells[exclusion.cell][1], self._cells[exclusion.smaller][1]
        said = f"cannot win: an inference at batch {batch} takes no less than one at batch {smaller}"
        if exclusion.bound < 1:
            said += f", so that it is at most {exclusion.bound:.2g} times as fast as the best"
        return said

    def ended(self, cell: str, leader: str | None, ending: Ending | None, broken: str) -> str:
        """Explain the end of the race for one of its last cells; ``broken`` is the limit that it does not keep."""
        after = self._after(cell)
        if cell == leader:
            return {
                "won": f"won {after}",
                "alike": f"ahead {after}; no other is more than {100 * AS_GOOD:g} % better",
                None: f"ahead {after}, which do not tell it from all others",
            }[ending]
        beside = self._race.ratio_to_leader(cell)
        said = f"in the race to its end, {after}"
        if beside is not None and leader is not None:
            said += f": about {float(beside.value):.3g} times as fast as {self._named(leader, cell)}"
        return f"{said}; it does not keep {broken}" if broken else said

    def placed(self, cell: str) -> dict[str, Any]:
        """Rank of a cell at the end, for the journal."""
        lane, batch = self._cells[cell]
        placed: dict[str, Any] = {"cell": cell, "lane": lane.id, "batch": batch, "rounds": self._race.rounds(cell)}
        beside = self._race.ratio_to_leader(cell)
        if beside is not None:
            low, high = (float(end) for end in beside.interval())
            known = math.isfinite(low)
            placed.update(ratio=float(beside.value), low=low if known else None, high=high if known else None)
        return placed

    def _after(self, cell: str) -> str:
        return f"after {counted(self._race.rounds(cell), 'round')}"

    def _named(self, cell: str, beside: str) -> str:
        """The shortest name that distinguishes a cell from another and from those of its workload."""
        lane, batch = self._cells[cell]
        precisions = {other.precision for other, _ in self._cells.values()}
        name = lane.compiler_label if len(precisions) == 1 else f"{lane.compiler_label} {lane.precision}"
        return name if batch == self._cells[beside][1] else f"{name} at batch {batch}"
