"""Click options of inference servers, shared by ``engine serve`` and ``fleet follow``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--name", help="The model's name for clients."),
    click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 is everywhere."),
    click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."),
    click.option(
        "--max-p99-ms", type=float, help="The latency that 99 of 100 answers shall keep; decides what is left out."
    ),
    click.option("--max-batch", type=click.IntRange(1), help="Samples in a batch, and in a request, at most."),
    click.option(
        "--max-delay-ms", type=click.FloatRange(0), help="How long a request waits for others to fill a batch."
    ),
    click.option(
        "--max-queue",
        type=click.IntRange(1, 1_000_000),
        help="Samples that may wait; more are told to come back later.",
    ),
    click.option(
        "--max-body-mb", type=float, help="The largest request; by default that of the largest batch as JSON."
    ),
    click.option("--timeout-s", type=float, default=30.0, show_default=True, help="How long a request may take."),
    click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Engines to load."),
)


def serving_options(command: F) -> F:
    """All of them; but for ``name`` they are the keys of `mlflow_ngraph_serve.settings.Settings`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
