"""Progress of a study on several devices: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mlflow_ngraph.cli.progress import LiveArea, ShownLane, State
from mlflow_ngraph.text import duration, harmless
from mlflow_ngraph_fleet.wire import Event


@dataclass
class _Row:
    state: str = "being submitted"
    doing: str = ""
    study: State | None = None

    def update(self, event: Event) -> str | None:
        """Take in an event; returns a line worth printing, or None."""
        kind = event["event"]
        if kind == "session_started":
            lanes = {
                lane["id"]: ShownLane(lane["label"], _compiler(lane["compiler_label"], lane["precision"]), 1.0)
                for lane in event["lanes"]
            }
            self.study = State(lanes, event["cells"])
        if kind in _OF_JOBS:
            self.doing = _OF_JOBS[kind].format_map(event)
            return self.doing
        if self.study is None:
            # What is said before a study begins: that it waits for the machine, or records an earlier session.
            early = State({}, 0)
            line = early.update(event)
            self.doing = early.activity if line else self.doing
            return line
        line = self.study.update(event)
        self.doing = self.study.activity
        return line

    def cells(self) -> str:
        """Number of finished cells, and of all."""
        return f"{self.study.done}/{self.study.cells}" if self.study is not None else "–"


_OF_JOBS = {
    "environment": "{doing}",
    "started": "started on {host} with Python {python}",
    "away": "measuring without a tracking server, and recorded from here afterwards: {reason}",
    "ended": "ended",
}
"""Messages of a job that are not the study's."""


class FleetTable(LiveArea):
    """Shows a study on several devices. An observer of it."""

    def __init__(self, devices: Sequence[str], console: Console) -> None:
        self._rows = {device: _Row() for device in devices}
        self._console = console
        self._started = time.monotonic()
        super().__init__(
            Live(console=console, refresh_per_second=1, transient=True, get_renderable=self._table)
            if console.is_terminal
            else None
        )

    def on_state(self, device: str, state: str) -> None:
        """Show a change in the state of a device's job."""
        self._rows[device].state = state
        self._say(device, state)

    def on_event(self, device: str, event: Event) -> None:
        """Show an event of a device's study."""
        line = self._rows[device].update(event)
        if line:
            self._say(device, line)

    def _say(self, device: str, line: str) -> None:
        if self._live is None:
            elapsed = duration(time.monotonic() - self._started)
            self._console.print(Text(f"{elapsed:>12}  {device}: {harmless(line)}"), soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for title in ("device", "job", "cells", "elapsed"):
            table.add_column(title, no_wrap=True)
        table.add_column("doing", overflow="ellipsis", no_wrap=True)
        for device, row in self._rows.items():
            elapsed = duration(time.monotonic() - self._started)
            table.add_row(
                device,
                Text(harmless(row.state.partition(":")[0])),
                row.cells(),
                elapsed,
                Text(harmless(row.doing or row.state)),
            )
        return table


def _compiler(label: str, precision: str) -> str:
    return label if precision == "fp32" else f"{label} {precision}"
