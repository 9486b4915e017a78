"""Progress of a transfer: bytes, speed, and the remaining time; silent without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mlflow_ngraph.cli import output


@contextmanager
def arriving(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; yields a function of the bytes done and the total."""
    console = output.console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)

        def told(done: int, total: int) -> None:
            whole = done >= total
            bars.update(task, completed=done, total=total, description="checking" if whole else what)

        yield told
